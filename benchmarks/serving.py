"""Decoding by the engine in each mode, beside transformers: ``python -m benchmarks serving --device cuda``.

Random weights of the sizes of Qwen3-0.6B and Llama-3.2-1B (small ones on the processor), 1, 8 and 64 requests at once, each of a short prompt.
``tokens_s`` counts what all requests get from the first step to the last, prompts included. ``step_ms`` is the median of decoding steps by the
clock, ``device_ms`` the same work without anybody waiting for tokens, and ``host_us`` the difference: what a step adds on
the host. ``floor_ms`` is what reading weights and cache once takes at the speed of a copy. Cases past the time limit are left out, and say so.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.table import Table

from benchmarks.device import copies, wait
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.serving.engine.compiled import compile_decoder
from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import build, fill_random
from braze.serving.engine.models.config import read_config
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.recordings import recorder_of
from braze.serving.engine.runner import ModelRunner, RunnerOptions
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scheduler import Limits
from braze.serving.policy.modes import CUDAGraphMode

#: what runs: transformers' generate, the same over a static cache with its decoding steps compiled by PyTorch, and the engine: uncompiled, and compiled in each mode;
#: "-schedule", "-capture": the border at which pieces are cut, after fusion or as they are recorded; "-traced": ordinary code in place of the operators that join norms, rotary embedding and attention, or sort tokens by experts
IMPLS = (
    "FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE",
    "PIECEWISE-schedule", "PIECEWISE-capture", "FULL_DECODE_ONLY-traced", "eager", "eager-FULL_DECODE_ONLY", "transformers", "torch-ro",
)  # fmt: skip
REQUESTS = (1, 8, 64)

_COMMON: dict[str, Any] = dict(
    hidden_act="silu",
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
    eos_token_id=None,
)
_QWEN3 = _COMMON | dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
_LLAMA = _COMMON | dict(architectures=["LlamaForCausalLM"], model_type="llama")
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "cuda": {
        "qwen3-0.6b": _QWEN3 | dict(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
            num_attention_heads=16, num_key_value_heads=8, head_dim=128, dtype="bfloat16",
        ),
        "llama-1b": _LLAMA | dict(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
            num_attention_heads=32, num_key_value_heads=8, head_dim=64, dtype="bfloat16",
        ),
    },
    "cpu": {
        "qwen3-tiny": _QWEN3 | dict(
            vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4, head_dim=32, dtype="float32",
        ),
    },
}  # fmt: skip


class Clock:
    """Seconds that are left; 0: as many as it takes."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + (seconds or float("inf"))

    def over(self) -> bool:
        return time.monotonic() > self.end

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """A block that TimeoutError ends when the time is up, as where a compile takes longer than that."""
        left = self.end - time.monotonic()
        if left == float("inf") or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ended(*_: Any) -> None:
            raise TimeoutError("past the time limit")

        before = signal.signal(signal.SIGALRM, ended)
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def run_serving(
    device: str, impls: tuple[str, ...], models: tuple[str, ...], seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row for each model, implementation and number of requests; models named by their beginnings, or all."""
    clock, rows = Clock(seconds), []
    prompt, made = (128, 128) if device == "cuda" else (16, 32)
    copy = _copy_speed(device)
    for name, config in MODELS[device].items():
        if models and not any(name.startswith(word) for word in models):
            continue
        for impl in impls:
            found = list(_impl(impl, device, config, prompt, made, clock, copy))
            rows += [{"model": name, "impl": impl, **row} for row in found]
            told = ", ".join(f"{row['requests']}: {row.get('tokens_s', 0):.0f}" for row in found)
            say(f"{name} {impl}: tokens/s of requests {told} {found[0].get('failed', '')}")
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    return rows


def _impl(
    impl: str, device: str, config: dict[str, Any], prompt: int, made: int, clock: Clock, copy: float
) -> Iterator[dict[str, Any]]:
    if clock.over():
        yield from ({"requests": n, "failed": "past the time limit"} for n in REQUESTS)
        return
    try:
        with clock.within():
            if impl in ("transformers", "torch-ro"):
                yield from _transformers(impl, device, config, prompt, made, clock)
            else:
                yield from _engine(impl, device, config, prompt, made, clock, copy)
    except Exception as error:
        yield {"requests": 0, "failed": f"{type(error).__name__}: {error}"}


def _prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    numbers = torch.Generator().manual_seed(count)
    return torch.randint(0, vocab, (count, length), generator=numbers).tolist()


def _transformers(
    impl: str, device: str, config: dict[str, Any], prompt: int, made: int, clock: Clock
) -> Iterator[dict[str, Any]]:
    make_torchvision_importable()
    import transformers

    known = {k: v for k, v in config.items() if k not in ("architectures", "dtype", "model_type")}
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **known),
            dtype=getattr(torch, config["dtype"]),
        ).eval()
    options: dict[str, Any] = dict(do_sample=False, max_new_tokens=made, min_new_tokens=made, pad_token_id=0)
    if impl == "torch-ro":  # prompts as they are, and decoding steps by torch.compile(mode="reduce-overhead")
        options |= dict(cache_implementation="static")
    for count in REQUESTS:
        ids = torch.tensor(_prompts(count, prompt, config["vocab_size"]), device=device)

        def run() -> None:
            with torch.inference_mode():
                model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            wait(device)

        if clock.over():
            yield {"requests": count, "failed": "past the time limit"}
            continue
        begun = time.perf_counter()
        run()
        first = time.perf_counter() - begun
        if impl == "torch-ro":  # its recordings are made in the first calls
            run()
        warm = time.perf_counter()
        run()
        taken = time.perf_counter() - warm
        row = {"requests": count, "tokens_s": count * made / taken, "step_ms": taken / made * 1e3}
        yield row | {"first_s": first - taken}


def _engine(
    impl: str, device: str, config: dict[str, Any], prompt: int, made: int, clock: Clock, copy: float
) -> Iterator[dict[str, Any]]:
    begun = time.perf_counter()
    engine, capture = _make(impl, device, config)
    ready = time.perf_counter() - begun
    for count in REQUESTS:
        if clock.over():
            yield {"requests": count, "failed": "past the time limit"}
            continue
        prompts = _prompts(count, prompt, config["vocab_size"])
        _generate(engine, prompts, min(8, made))  # what a first run builds
        taken, steps = _generate(engine, prompts, made)
        row = {
            "requests": count,
            "tokens_s": count * made / taken,
            "step_ms": statistics.median(steps) * 1e3,
            "device_ms": _device(engine, prompts) * 1e3,
            "capture_s": capture,
            "ready_s": ready,
            "graphs": engine.runner.stats().get("graphs", 0),
            "floor_ms": _bytes(engine, count, prompt + made // 2) / copy * 1e3,
        }
        yield row | {"host_us": (row["step_ms"] - row["device_ms"]) * 1e3}


def _make(impl: str, device: str, config: dict[str, Any]) -> tuple[Engine, float]:
    """An engine with random weights, and the seconds that recording took."""
    name = device if device == "cpu" else "cuda:0"
    model = build(read_config(config), name)
    fill_random(model)
    words = impl.split("-")
    compiled = words[0] != "eager"
    mode = CUDAGraphMode[next((w for w in words if w in CUDAGraphMode.__members__), "NONE")]
    split = next((w for w in words if w in ("schedule", "capture")), "graph")
    graphs = recorder_of(model)
    mode = mode if graphs is not None else CUDAGraphMode.NONE
    chosen = {"custom_ops": ("none",)} if "traced" in words else {}
    pieces = compile_decoder(model, mode, split, **chosen) if compiled else None
    limits = Limits(max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=512, share_prefixes=False)
    runner = ModelRunner(
        model,
        limits,
        RunnerOptions(mode, (1, 2, 4, 8, 16, 32, 64)),
        graphs=graphs,
        piecewise=pieces,
        compiled=pieces,
    )
    runner.allocate_cache(64 * 512 // limits.block_size)
    capture, _ = runner.capture_cudagraph()
    return Engine(runner), capture


def _generate(engine: Engine, prompts: list[list[int]], made: int) -> tuple[float, list[float]]:
    """Seconds of all, and of each step that only decodes."""
    params = SamplingParams(made, ignore_eos=True)
    for prompt in prompts:
        engine.add(prompt, params)
    steps: list[float] = []
    begun = time.perf_counter()
    while not engine.scheduler.idle():
        before = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == len(prompts) and outputs[0].request.generated > 1:
            steps.append(time.perf_counter() - before)
    return time.perf_counter() - begun, steps or [float("nan")]


@torch.inference_mode()
def _device(engine: Engine, prompts: list[list[int]], rounds: int = 20) -> float:
    """Seconds of one decoding step's work on the device: the same step again and again, without reading its tokens."""
    runner = engine.runner
    requests = [engine.add(prompt, SamplingParams(4, ignore_eos=True)) for prompt in prompts]
    while not all(request.generated for request in requests):
        engine.step()
    decision, batch = runner.prepare_inputs(engine.scheduler.schedule())
    for counted in (False, True):
        wait(str(runner.device))
        begun = time.perf_counter()
        for _ in range(rounds if counted else 2):
            hidden = runner.run_model(decision, batch)
            if not runner.draws_along(decision):
                runner.model.compute_logits(hidden).argmax(-1)
        wait(str(runner.device))
    taken = (time.perf_counter() - begun) / rounds
    for request in requests:
        engine.abort(request)
    return taken


def _bytes(engine: Engine, requests: int, length: int) -> int:
    """Bytes that a decoding step has to read: weights and the requests' cache."""
    model: Decoder = engine.runner.model
    weights = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    token = model.cache_shape.numbers() * model.config.layers * engine.runner.dtype.itemsize
    return sum(weights.values()) + requests * length * token


def _copy_speed(device: str) -> float:
    """Bytes a second of a large copy, read and written both."""
    size = 1 << (30 if device == "cuda" else 26)
    return 2 * size / min(copies(device, size, 5))


def serving_table(rows: list[dict[str, Any]]) -> Table:
    """Tokens a second, and what a step takes."""
    table = Table(title="Tokens a second (speed against eager); a decoding step", title_justify="left")
    for column in ("model", "requests", "implementation"):
        table.add_column(column)
    for column in ("tokens/s", "step ms", "device ms", "host us", "floor ms", "capture s", "graphs"):
        table.add_column(column, justify="right")
    eager = {
        (r["model"], r["requests"]): r["tokens_s"] for r in rows if r["impl"] == "eager" and "tokens_s" in r
    }
    for row in sorted(rows, key=lambda r: (r["model"], r["requests"])):
        if "tokens_s" not in row:
            table.add_row(row["model"], str(row["requests"]), row["impl"], "failed")
            continue
        against = eager.get((row["model"], row["requests"]))
        cells = [f"{row['tokens_s']:.0f}" + (f" ({row['tokens_s'] / against:.2f})" if against else "")]
        for name, form in (
            ("step_ms", ".3f"), ("device_ms", ".3f"), ("host_us", ".0f"), ("floor_ms", ".3f"), ("capture_s", ".2f"), ("graphs", "d"),
        ):  # fmt: skip
            cells.append(format(row[name], form) if name in row else "")
        table.add_row(row["model"], str(row["requests"]), row["impl"], *cells)
    return table
