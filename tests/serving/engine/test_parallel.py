"""Two processes that share a model by tensor parallelism give the tokens of one that has it all."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from braze.cudagraphs.registry import device_of, register
from braze.cudagraphs.simulated import SimulatedGraph, SimulatedGraphs
from braze.serving.engine.loading import load_model, write_random
from braze.serving.engine.models import parallel
from braze.serving.engine.models.config import read_config, split
from braze.serving.engine.models.parallel import Ranks, leave, ranks_of, records_for
from braze.serving.engine.sampling import SamplingParams
from braze.support.errors import UserError
from tests.serving.engine.tiny import DEEPSEEK, LLAMA, QWEN3, engine, tiny

EVEN = {"vocab_size": 98}
CONFIGS = {
    "llama": LLAMA | EVEN | {"attention_bias": True, "mlp_bias": True},
    "qwen3": QWEN3 | EVEN,
    "deepseek": DEEPSEEK | EVEN,
}
#: model, mode, whether it is compiled in pieces
RUNS = (
    ("llama", "NONE", None),
    ("qwen3", "FULL_AND_PIECEWISE", "graph"),
    ("deepseek", "FULL_DECODE_ONLY", None),
)
PROMPTS = [[5, 6, 7], [9], list(range(3, 30))]
GREEDY, DRAWN = SamplingParams(8, ignore_eos=True), SamplingParams(6, temperature=1.0, ignore_eos=True)


def tokens(
    name: str, mode: str, pieces: str | None, folder: str, ranks: Ranks, device: str
) -> tuple[Any, Any, int, int]:
    """(greedy tokens, drawn tokens, blocks, recordings) of one process."""
    model = load_model(f"{folder}/{name}", device, ranks=ranks)
    served = engine(model, 60 - ranks.rank, device_of(device), cudagraph_mode=mode, split=pieces)
    greedy = served.generate(PROMPTS, GREEDY)
    torch.manual_seed(ranks.rank)  # what is drawn is the first rank's
    return (
        greedy,
        served.generate(PROMPTS, DRAWN),
        served.runner.blocks,
        len(served.runner.recordings.captured),
    )


def worker(rank: int, folder: str, backend: str, results: Any) -> None:
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    else:
        register("cpu", SimulatedGraphs)
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    ranks = ranks_of()
    results.put((rank, [tokens(*run, folder, ranks, device) for run in RUNS]))
    results.close()
    results.join_thread()
    leave(ranks)
    assert not torch.distributed.is_initialized()


def check_two_ranks(folder: Path, backend: str, device: str) -> None:
    """Two processes, each with a device of its own, against one."""
    for name, config in CONFIGS.items():
        write_random(folder / name, config, seed=1)
        assert read_config(config).vocab == 98
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=worker, args=(rank, str(folder), backend, results)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    got = dict(results.get(timeout=170) for _ in processes)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for i, run in enumerate(RUNS):
        greedy, _, _, recorded = tokens(*run, str(folder), Ranks(), device)
        for rank in range(2):
            assert got[rank][i][0] == greedy, run
            assert got[rank][i][1] == got[0][i][1], "all ranks take what the first draws"
            assert got[rank][i][2] == 59, "the least that a rank has room for"
            assert got[rank][i][3] == recorded


def test_two_ranks_give_the_tokens_of_one_process(tmp_path, simulated):
    check_two_ranks(tmp_path, "gloo", "cpu")


def recordings_alive() -> list[SimulatedGraph]:
    return [graph for graph in gc.get_objects() if isinstance(graph, SimulatedGraph)]


def test_who_leaves_a_group_lets_go_of_what_was_recorded_first(simulated, monkeypatch):
    """NCCL waits without an end for recordings of a group that is destroyed, whole ones and those of pieces, though somebody holds the engine."""
    before = weakref.WeakSet(recordings_alive())  # who made them may still hold them
    model = tiny("qwen3")
    served = engine(model, 60, simulated, cudagraph_mode="FULL_AND_PIECEWISE", split="graph")
    expected = served.generate([[5, 6, 7]], GREEDY)
    graphs = [weakref.ref(graph) for graph in recordings_alive() if graph not in before]
    assert len(graphs) > len(served.runner.graphs) > 0
    ranks = Ranks(0, 2, "two")
    alive: list[int] = []
    monkeypatch.setitem(parallel._groups, "two", "a group")
    monkeypatch.setattr(torch.distributed, "barrier", lambda group: None)
    monkeypatch.setattr(
        torch.distributed,
        "destroy_process_group",
        lambda group: alive.append(sum(graph() is not None for graph in graphs)),
    )
    records_for(ranks, served.runner)
    leave(ranks)
    assert alive == [0]
    assert served.generate([[5, 6, 7]], GREEDY) == expected, "its steps run as they are"


def test_each_rank_has_its_part_of_a_checkpoints_tensor():
    whole = torch.arange(24.0).view(6, 4)
    one = Ranks(1, 2, "x")
    assert torch.equal(one.part(whole, torch.Size((3, 4))), whole[3:])
    assert torch.equal(one.part(whole, torch.Size((6, 2))), whole[:, 2:])
    assert one.part(whole, whole.shape) is whole
    assert Ranks().part(whole, torch.Size((3, 4))) is whole, "who has it all takes no part"


@pytest.mark.parametrize(
    ("config", "size", "word"),
    [(LLAMA, 2, "vocabulary, 97"), (LLAMA | EVEN, 4, "vocabulary, 98"), (QWEN3 | {"vocab_size": 96}, 3, "heads, 4"),
     (LLAMA | {"vocab_size": 96}, 4, "heads of the cache, 2"), (DEEPSEEK | {"vocab_size": 96, "moe_intermediate_size": 21}, 2, "experts, 21")],
)  # fmt: skip
def test_what_cannot_be_shared_evenly_is_refused(config, size, word):
    with pytest.raises(UserError, match=word) as error:
        split(read_config(config), Ranks(0, size, "x"))
    assert error.value.code == "BZ7403"
