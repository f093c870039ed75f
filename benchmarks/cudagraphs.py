"""Calls that launches bound, with and without CUDA graphs: ``python -m benchmarks cudagraphs --device cuda``.

Each case in eager, torch.compile and braze, the last two in the default mode and in ``mode="reduce-overhead"``; one process, rounds
interleaved, medians. The time is a user's: from the first call of a run to the end of the device's work for the last, by the
clock. ``torch.compiler.cudagraph_mark_step_begin`` is called before each call, for those who need it. Results are compared with eager's; a
case that fails is a row that says so. ``peak_mb`` is what PyTorch's allocator reserves at most beyond the model and its inputs in an implementation's first calls, ``whole_mb`` with these. Then the
implementation is let go of, so that each finds the same room in the model's pieces, and made again for its times.

``--limit 220`` starts nothing more after so many seconds, ``--rounds 1`` is a quick look, which also builds what later runs find. ``--device cpu`` runs
smaller models with recordings on the simulated device: that tries the logic, its times mean nothing. Of steps of decoding the device's time in kernels
alone is measured last, since a profiler may slow what follows; of braze's with kernels that begin in their turn, since one that begins early counts its wait.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import braze
from benchmarks.profiled import profiled
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.support import trace

IMPLS = ("eager", "torch", "torch-ro", "braze", "braze-ro")
#: runs of each implementation in turn, seconds that a run should take, calls before the first
ROUNDS, RUN_S, WARM = 7, 0.05, 5


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """``make`` gives a function or module and its inputs; ``training``: its loss's backward too; ``optimizer``: and a step of AdamW, at rate 0.
    ``small``: the same for a processor; ``kernels``: the time in kernels is measured; ``fewest``: launches of which braze records a graph (0: as
    many as by default); ``held``: results that are kept from call to call."""

    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    training: bool = False
    optimizer: bool = False
    small: Callable[[], tuple[Any, tuple[Any, ...]]] | None = None
    kernels: bool = False
    fewest: int = 0
    held: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Where cases run: "cuda", or "cpu" with a simulated device; ``ends``: the time by the clock after which nothing starts."""

    device: str
    ends: float
    rounds: int

    def wait(self) -> None:
        """Until the device is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def reserved(self, *, most: bool = False) -> int:
        """Bytes that PyTorch's allocator has of the device, now or at most."""
        if self.device != "cuda":
            return 0
        return torch.cuda.max_memory_reserved() if most else torch.cuda.memory_reserved()

    def clear(self) -> None:
        """Give memory back, and count from here."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


class Decoder(nn.Module):
    """One step of a Llama-like model over a cache of keys and values that is full to ``place``."""

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, batch: int, length: int = 512
    ) -> None:
        super().__init__()
        self.heads, self.layers = heads, layers
        self.embedding = weight(8192, width)
        self.qkv = nn.ParameterList([weight(3 * width, width) for _ in range(layers)])
        self.out = nn.ParameterList([weight(width, width) for _ in range(layers)])
        self.up = nn.ParameterList([weight(2 * inner, width) for _ in range(layers)])
        self.down = nn.ParameterList([weight(width, inner) for _ in range(layers)])
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(2 * layers)])
        shape = layers, batch, heads, length, width // heads
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def norm(self, x: torch.Tensor, i: int) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.norms[i]

    def forward(self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.embedding)
        for i in range(self.layers):
            split = F.linear(self.norm(x, 2 * i), self.qkv[i]).unflatten(-1, (3, self.heads, -1))
            q, k, v = split.unbind(1)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            keys = torch.cat((self.keys[i], k[:, :, None]), 2)
            values = torch.cat((self.values[i], v[:, :, None]), 2)
            found = F.scaled_dot_product_attention(q[:, :, None], keys, values)
            x = x + F.linear(found[:, :, 0].flatten(1), self.out[i])
            gate, up = F.linear(self.norm(x, 2 * i + 1), self.up[i]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down[i])
        return F.linear(x, self.embedding)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def decoder(layers: int, width: int, heads: int, inner: int, batch: int) -> Any:
    model = Decoder(layers, width, heads, inner, batch)
    half = width // heads
    return model, (torch.randint(0, 8192, (batch,)), torch.randn(half), torch.randn(half))


def decoding(layers: int, heads: int, inner: int, batch: int) -> Case:
    """The case of a decoding step."""
    return Case(
        lambda: decoder(layers, 1024, heads, inner, batch),
        small=lambda: decoder(2, 64, 4, 176, batch),
        kernels=True,
    )


class Recommender(nn.Module):
    """DLRM: tables of categories beside numbers, their products, and layers above."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10000, 64) for _ in range(26)])
        self.below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(27 * 27 + 64, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.below(numbers)
        rows = torch.stack([dense, *(t(categories[:, i]) for i, t in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.above(torch.cat((products, dense), 1)))


def hub(model: str, config: str, *inputs: tuple[str, Any], **fields: Any) -> Any:
    """A model of transformers with random weights, called with keywords."""
    make_torchvision_importable()
    transformers = importlib.import_module("transformers")
    made = getattr(transformers, model)(getattr(transformers, config)(**fields)).eval()
    names = [name for name, _ in inputs]

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made

        def forward(self, *values: Any) -> Any:
            return self.inner(**dict(zip(names, values, strict=True)))[0]

    return Called().eval(), tuple(value for _, value in inputs)


def _tokens(length: int, vocabulary: int = 8192) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, length))


def gpt() -> Any:
    fields = dict(
        vocab_size=8192, n_embd=384, n_layer=6, n_head=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return hub("GPT2Model", "GPT2Config", ("input_ids", _tokens(256)), ("use_cache", False), **fields)


def added() -> Any:
    return lambda x: x + 1, (torch.randn(1024),)


CASES: dict[str, Case] = {
    "x + 1": Case(added),
    "x + 1, recorded": Case(added, fewest=1),
    "x + 1, recorded, the last result kept": Case(added, fewest=1, held=1),
    "x + 1, recorded, three results kept": Case(added, fewest=1, held=3),
    "mlp of 8 layers": Case(
        lambda: (nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU()))), (torch.randn(1, 256),))
    ),
    "dlrm": Case(lambda: (Recommender(), (torch.randn(1, 13), torch.randint(0, 10000, (1, 26))))),
    "nanogpt": Case(gpt),
    "nanogpt training": Case(gpt, training=True),
    "nanogpt training step": Case(gpt, training=True, optimizer=True),
    "bert": Case(lambda: hub("BertModel", "BertConfig", ("input_ids", _tokens(128)), vocab_size=8192)),
    "resnet": Case(lambda: hub("ResNetModel", "ResNetConfig", ("pixel_values", torch.randn(1, 3, 224, 224)))),
    "t5 encoder": Case(lambda: hub("T5EncoderModel", "T5Config", ("input_ids", _tokens(128)), vocab_size=8192)),
    "decode llama 24x1024 batch 1": decoding(24, 16, 2816, 1),
    "decode llama 24x1024 batch 8": decoding(24, 16, 2816, 8),
    "decode qwen 28x1024 batch 1": decoding(28, 8, 3072, 1),
    "decode qwen 28x1024 batch 8": decoding(28, 8, 3072, 8),
}  # fmt: skip


def run_cudagraphs(
    impls: tuple[str, ...],
    words: tuple[str, ...],
    say: Callable[[str], None],
    device: str,
    limit: float,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """A row for each implementation of each case whose name has one of the words; ``limit``: seconds after which none is begun."""
    machine = Machine(device, time.monotonic() + limit if limit else float("inf"), rounds)
    if device == "cpu":
        register("cpu", SimulatedGraphs)
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        found = _case(name, case, impls, machine)
        say(f"{name}: " + ", ".join(f"{row['impl']} {row.get('us', float('nan')):.1f}" for row in found))
        rows += found
        _forget(None, machine)
    return rows


def _forget(fn: Any, machine: Machine) -> None:
    """Let go of what implementations keep, and of gradients."""
    if isinstance(fn, nn.Module):
        fn.zero_grad(set_to_none=True)
    braze.reset()
    torch.compiler.reset()
    machine.clear()


def _case(name: str, case: Case, impls: tuple[str, ...], machine: Machine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"case": name, "impl": impl} for impl in impls]
    if time.monotonic() > machine.ends:
        return [{**row, "failed": "not begun: no time is left"} for row in rows]
    torch.manual_seed(0)
    fn, inputs = (case.small if case.small is not None and machine.device == "cpu" else case.make)()
    inputs = tuple(_moved(x, machine.device) for x in inputs)
    if isinstance(
        fn, nn.Module
    ):  # rounded first: else memory of the wider weights would lie about, which calls could use
        fn = fn.bfloat16().to(machine.device).train(case.training)
    wanted = [t.clone() for t in _call(fn, fn, inputs, case, "eager")()]
    _forget(fn, machine)
    for row in rows:
        if time.monotonic() > machine.ends:
            row["failed"] = "not begun: no time is left"
            continue
        try:
            _first(
                _call(_compiled(fn, row["impl"], case), fn, inputs, case, row["impl"]), row, wanted, machine
            )
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"
        _forget(fn, machine)
    calls: dict[str, Callable[[], list[torch.Tensor]]] = {}
    for row in rows:
        if "failed" not in row:
            calls[row["impl"]] = _call(_compiled(fn, row["impl"], case), fn, inputs, case, row["impl"])
            for _ in range(WARM):
                calls[row["impl"]]()
    times: dict[str, list[float]] = {impl: [] for impl in calls}
    many = {impl: max(1, int(RUN_S / _seconds(call, 3, machine))) for impl, call in calls.items()}
    for _ in range(machine.rounds):
        for impl, call in calls.items():
            times[impl].append(_seconds(call, many[impl], machine) * 1e6)
    for row in rows:
        if row["impl"] in times:
            row["us"], row["rounds_us"] = statistics.median(times[row["impl"]]), times[row["impl"]]
            if case.kernels and machine.device == "cuda" and row["impl"].endswith("-ro"):
                call = calls[row["impl"]]
                if row["impl"].startswith("braze"):
                    call = _call(_compiled(fn, row["impl"], case, late=True), fn, inputs, case, row["impl"])
                row.update(_in_kernels(call))
    return rows


def _in_kernels(call: Callable[[], Any]) -> dict[str, Any]:
    """The device's time in kernels, of three profiled calls the one between the others."""
    for _ in range(WARM):
        call()
    return sorted((profiled(call) for _ in range(3)), key=lambda row: row["gpu_us"])[1]


def _moved(x: Any, device: str) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.to(device).bfloat16() if x.is_floating_point() else x.to(device)


def _compiled(fn: Any, impl: str, case: Case, *, late: bool = False) -> Any:
    """The function by an implementation: "braze-ro" is braze in mode reduce-overhead. ``late``: no kernel of braze's begins before its turn."""
    kind, _, mode = impl.partition("-")
    if kind == "eager":
        return fn
    if kind == "torch":
        return torch.compile(fn, mode="reduce-overhead") if mode else torch.compile(fn)
    options: dict[str, Any] = {"cudagraphs": bool(mode)}
    if case.fewest:
        options["cudagraph_launches"] = case.fewest
    if late:
        options["early_launches"] = "none"
    return braze.compile(fn, options=options)


def _stepper(fn: Any, impl: str) -> Callable[[], Any]:
    """A step of AdamW at rate 0, by an implementation: all is computed, and nothing changes."""
    kind, _, mode = impl.partition("-")
    capturable = bool(mode) and next(fn.parameters()).is_cuda
    optimizer = torch.optim.AdamW(fn.parameters(), lr=0.0, capturable=capturable)
    if kind == "braze":
        braze.compile_optimizer(optimizer, mode="reduce-overhead" if mode else None)
    if kind == "torch":
        return torch.compile(optimizer.step, mode="reduce-overhead" if mode else None)
    return optimizer.step


def _call(
    compiled: Any, fn: Any, inputs: tuple[Any, ...], case: Case, impl: str
) -> Callable[[], list[torch.Tensor]]:
    step = _stepper(fn, impl) if case.optimizer else lambda: None
    held: deque[torch.Tensor] = deque(maxlen=case.held)
    # torch.compile writes over a result at the next call, whoever holds it
    keep = held.append if case.held and impl != "torch-ro" else _let_go

    def infer() -> list[torch.Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            result = compiled(*inputs)
        keep(result)
        return [result]

    def train() -> list[torch.Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        fn.zero_grad(set_to_none=True)
        loss = compiled(*inputs).float().square().mean()
        loss.backward()
        step()
        return [loss.detach(), *(p.grad for p in fn.parameters() if p.grad is not None)]

    return train if case.training else infer


def _let_go(result: torch.Tensor) -> None:
    """Nobody keeps it."""


def _first(
    call: Callable[[], list[torch.Tensor]], row: dict[str, Any], wanted: list[torch.Tensor], machine: Machine
) -> None:
    """The first calls: what they take beside the later ones, what they need of memory, and how far off results are."""
    machine.wait()
    machine.clear()
    before = machine.reserved()
    made = trace.COUNTERS["cudagraph_recordings"]
    start = time.perf_counter()
    call()
    machine.wait()
    row["first_s"] = time.perf_counter() - start
    start = time.perf_counter()
    with trace.collect() as events:
        for _ in range(WARM):
            found = call()
        machine.wait()
    row["warm_s"] = time.perf_counter() - start
    row["recordings"] = trace.COUNTERS["cudagraph_recordings"] - made
    row["notes"] = sorted({str(note) for kind, note in events if kind == "cudagraph"})
    row["whole_mb"] = machine.reserved(most=True) / 2**20
    row["peak_mb"] = row["whole_mb"] - before / 2**20
    row["difference"] = max(
        (float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp_min(1e-9)))
        for a, b in zip(found, wanted, strict=True)
    )


def _seconds(call: Callable[[], Any], times: int, machine: Machine) -> float:
    """Of one call, of a row of them with the device's work."""
    machine.wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    machine.wait()
    return (time.perf_counter() - start) / times
