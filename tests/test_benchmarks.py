"""The benchmark runner: names, arithmetic of its tables, and workers that fail."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import braze
from benchmarks import (
    accuracy,
    cliff_cases,
    cliff_errors,
    cliff_programs,
    cliff_shapes,
    cliffs,
    cudagraphs,
    gpu_zoo,
    profiled,
    report,
    run,
    stencils,
    worker,
    zoo,
)
from benchmarks.__main__ import MODELS, main
from benchmarks.worker import compiled
from braze.codegen.c import rows
from braze.cudagraphs.registry import register
from tests.helpers import explained


def shown(table) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_the_command_line_knows_every_model():
    assert tuple(zoo.CASES) == MODELS


def test_models_of_a_gpu_have_a_loss_and_a_table_of_speeds_and_peaks():
    assert set(gpu_zoo.TRAINED) < set(gpu_zoo.MODELS)
    with torch.device("meta"):
        model, inputs = gpu_zoo.nanogpt()
        assert worker.loss_of(model(**inputs)).shape == ()
    common = {"model": "nanogpt", "compile_seconds": 1.0, "gpu_us": 900.0}
    rows = [
        {**common, "impl": "eager", "milliseconds": 2.0, "rounds_ms": [2.0, 2.1], "peak_bytes": 100},
        {**common, "impl": "braze", "milliseconds": 1.0, "rounds_ms": [1.0, 1.05], "peak_bytes": 80},
        {**common, "impl": "torch", "failed": "out of memory"},
    ]
    text = shown(report.gpu_models_table(rows, ("eager", "torch", "braze")))
    assert "1.00 (2.00; 0.80)" in text and "failed" in text and "1.0, 0.90" in text


def test_a_tuned_implementation_is_compiled_in_the_mode_that_times_kernels(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda fn, **words: asked.append(("torch", words["mode"])))
    monkeypatch.setattr("braze.compile", lambda fn, **words: asked.append(("braze", words["mode"])))
    for impl in ("torch", "torch-tuned", "braze", "braze-tuned"):
        compiled(impl, torch.sin)
    mode = "max-autotune-no-cudagraphs"
    assert asked == [("torch", None), ("torch", mode), ("braze", None), ("braze", mode)]


def test_models_are_the_same_in_every_process():
    (a, inputs), (b, again) = zoo.CASES["timm_mobilenetv3"].make(), zoo.CASES["timm_mobilenetv3"].make()
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert torch.equal(inputs["x"], again["x"])
    assert not a.training


def test_a_name_may_ask_for_the_first_rows_alone():
    model, inputs = zoo.find("nanogpt:b1").make()
    _, whole = zoo.find("nanogpt").make()
    assert inputs["ids"].shape[0] == 1 < whole["ids"].shape[0]
    assert torch.equal(inputs["ids"], whole["ids"][:1])
    assert model(**inputs).dim() == 0


def test_writes_of_slices_over_fresh_fields_are_predicates_in_the_loops_that_make_them():
    """As a stencil's gradients are: three fields, one kernel, and eager's numbers."""
    model, fields = stencils.mixing(6, 7, 5)

    def differences(field, mask, dx, dy, dz):
        return stencils.gradients(field, mask, (dx, dy, dz))

    given = tuple(fields[name] for name in ("heat", "mask", "dx", "dy", "dz"))
    compiled = braze.compile(differences)
    for ours, eagers in zip(compiled(*given), differences(*given), strict=True):
        assert torch.allclose(ours, eagers, rtol=1e-14)
    assert len(explained(differences, *given, backend="braze").kernels) == 1
    assert all(torch.isfinite(made).all() for made in model(**fields))


def test_speed_is_the_median_of_paired_rounds():
    """A round in which the whole machine was slow does not count against either."""
    rows = [
        {"model": "m", "impl": "eager", "milliseconds": 10.0, "rounds_ms": [10.0, 100.0, 10.0]},
        {"model": "m", "impl": "braze", "milliseconds": 5.0, "rounds_ms": [5.0, 50.0, 5.0], "error": 2e-7,
         "eager_error": 1e-7, "graphs": 1, "breaks": 0, "compile_seconds": 1.5},
    ]  # fmt: skip
    text = shown(report.models_table(rows, ("eager", "braze")))
    assert "5.0 (2.00)" in text
    assert "1, 0" in text
    assert "2.00" in text.split("1, 0")[0].rsplit("│", 2)[1]


def test_a_failed_row_is_shown_and_left_out_of_the_mean():
    rows = [
        {"model": "m", "impl": "eager", "milliseconds": 10.0, "rounds_ms": [10.0]},
        {"model": "m", "impl": "braze", "failed": "braze: ValueError: no\nmore"},
    ]
    assert "failed" in shown(report.models_table(rows, ("eager", "braze")))
    assert report.failures(rows) == ["m: braze: ValueError: no"]


def test_cudagraphs_table_has_speeds_against_eager():
    more = {"first_s": 2.0, "warm_s": 0.125, "peak_mb": 20.0, "recordings": 1, "difference": 1e-7}
    rows = [
        {"case": "c", "impl": "eager", "us": 100.0, **more},
        {"case": "c", "impl": "torch-ro", "failed": "no"},
        {"case": "c", "impl": "braze-ro", "us": 25.0, "gpu_us": 21.0, **more},
    ]
    text = shown(report.cudagraphs_table(rows, ("eager", "torch-ro", "braze-ro")))
    assert "21.0 (1.19)" in text
    assert "25.0 (4.00)" in text
    assert "failed" in text
    assert "2.0 + 0.12" in text
    assert "(4.00)" in text.split("geometric mean")[1]


def test_cudagraphs_table_has_the_peak_without_recordings_beside_that_with_them():
    row = {"case": "c", "us": 1.0, "first_s": 0.0, "warm_s": 0.0, "recordings": 1, "difference": 0.0}
    rows = [
        {**row, "impl": "braze", "peak_mb": 37.0, "whole_mb": 400.0},
        {**row, "impl": "braze-ro", "peak_mb": 41.0, "whole_mb": 404.0, "warm_s": 0.25},
    ]
    text = shown(report.cudagraphs_table(rows, ("braze", "braze-ro")))
    assert "41 (37)" in text and "404 (1.01)" in text and "(+0.25)" in text


def test_cudagraphs_begin_nothing_when_the_time_is_over():
    rows = cudagraphs.run_cudagraphs(("eager", "braze-ro"), ("dlrm",), lambda text: None, "cpu", -1.0)
    register("cpu", None)
    assert [row["impl"] for row in rows] == ["eager", "braze-ro"]
    assert all("no time" in row["failed"] for row in rows)


def test_cudagraphs_training_step_is_that_of_eager(monkeypatch):
    make = lambda: (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), (torch.randn(2, 8),))
    monkeypatch.setattr(
        cudagraphs,
        "CASES",
        {"step": cudagraphs.Case(make, training=True, optimizer=True), "call": cudagraphs.Case(make)},
    )
    monkeypatch.setattr(cudagraphs, "RUN_S", 0.001)
    rows = cudagraphs.run_cudagraphs(("eager", "braze", "braze-ro"), (), lambda text: None, "cpu", 0.0)
    register("cpu", None)
    assert all("us" in row and row["difference"] < 0.05 for row in rows), rows
    assert sum(row["recordings"] for row in rows if row["impl"] == "braze-ro") >= 3


def test_cudagraphs_of_little_calls_are_recorded_and_keep_results(monkeypatch):
    """Two slots take turns where the last result is kept; where three are, their outputs are copied out."""
    words = "x + 1, recorded", "x + 1"
    cases = {name: cudagraphs.CASES[name] for name in cudagraphs.CASES if name.startswith(words)}
    assert sorted((case.fewest, case.held) for case in cases.values()) == [(0, 0), (1, 0), (1, 1), (1, 3)]
    monkeypatch.setattr(cudagraphs, "RUN_S", 0.001)
    rows = cudagraphs.run_cudagraphs(("eager", "braze-ro"), words, lambda text: None, "cpu", 0.0, 1)
    register("cpu", None)
    assert all(row["us"] > 0 and row["difference"] == 0 for row in rows), rows
    made = [row["recordings"] for row in rows if row["impl"] == "braze-ro"]
    assert made[0] == 0 and made[1] >= 1 and made[2] == 2 and made[3] == 3, rows


def test_compile_time_ratio_is_braze_over_torch():
    rows = [
        {"model": "m", "impl": "torch", "capture": 3.0, "cold": 12.0, "warm": 4.0},
        {"model": "m", "impl": "braze", "capture": 0.3, "cold": 3.0, "warm": 1.0},
    ]
    text = shown(report.compile_time_table(rows, ("eager", "torch", "braze")))
    assert "0.100" in text
    assert "0.250" in text


def test_the_guard_walk_has_a_column_of_its_own():
    rows = [
        {"case": "add", "impl": "eager", "microseconds": 3.0},
        {"case": "add", "impl": "braze", "microseconds": 3.5, "walk_us": 0.125},
    ]
    text = shown(report.overhead_table(rows, ("eager", "braze"), {"add": "one"}, ()))
    assert "braze: guard walk" in text
    assert "3.50 (+0.50)" in text and "0.12" in text.split("(+0.50)")[1]


def test_the_walk_of_a_tree_and_of_a_function_is_measured():
    import braze
    from benchmarks import overhead

    braze.reset()
    for name in ("linears", "eight"):
        loop, walk = overhead.prepare("braze", name, compiled)
        assert 1e-8 < walk < 1e-3
        assert walk < 2 * loop(50)
    braze.reset()


def test_an_optimizer_is_measured_beside_its_floor(monkeypatch):
    from benchmarks import optimizer

    monkeypatch.setitem(optimizer.CASES, "few", (3, 100))
    for impl in ("loop", "foreach", "fused", "braze"):
        loop, first, floor = optimizer.prepare(impl, "few")
        assert 0 < loop(2) < 1
        assert first > 0
        assert floor > 0


def test_the_optimizers_table_has_ratios_and_gaps():
    from benchmarks import optimizer

    rows = [
        {"case": "c", "impl": "fused", "milliseconds": 4.0, "rounds_ms": [4.0, 40.0], "first_seconds": 0.1,
         "floor_seconds": 0.001},
        {"case": "c", "impl": "braze", "milliseconds": 2.0, "rounds_ms": [2.0, 20.0], "first_seconds": 0.2,
         "floor_seconds": 0.001},
        {"case": "c", "impl": "torch", "failed": "torch: no"},
    ]  # fmt: skip
    text = shown(optimizer.optimizer_table(rows, ("loop", "fused", "torch", "braze")))
    assert "4.00 (2.00x; 0.10 s)" in text
    assert "failed" in text
    assert "1.00 " in text.splitlines()[-2]


def test_clipping_is_timed_on_the_same_gradients_and_has_a_table_of_ratios(monkeypatch):
    from benchmarks import clipping

    monkeypatch.setattr(clipping, "CASES", {"2 x 8": (2, 8), "too many": (1, clipping.MOST_ON_CPU + 1)})
    rows = clipping.run_clipping("cpu", clipping.IMPLS, 1, lambda what: None)
    assert {row["case"] for row in rows} == {
        f"{k}: 2 x 8, {d}" for k in clipping.KINDS for d in clipping.DTYPES
    }
    told = [
        {"case": "c", "impl": "foreach", "ms": 4.0, "host_ms": 3.0, "rounds": [4.0, 40.0], "floor_ms": 1.5},
        {"case": "c", "impl": "braze", "ms": 2.0, "host_ms": 1.0, "rounds": [2.0, 20.0], "floor_ms": 1.5},
    ]
    text = shown(clipping.clipping_table(told, clipping.IMPLS))
    assert "4.000 (3.000; 2.00x)" in text and "2.000 (1.000; 1.00x)" in text and "1.500" in text
    assert all(len(row["rounds"]) == 1 for row in rows)


def test_results_say_what_they_were_measured_with(tmp_path):
    path = report.place("models", str(tmp_path / "out.json"))
    report.write("models", [], ["models", "--models", "vit"], path)
    kept = json.loads(path.read_text())
    assert kept["command"] == "python -m benchmarks models --models vit"
    assert kept["versions"]["torch"] == torch.__version__
    assert kept["machine"]["cores"] >= 1


def test_error_is_relative_to_the_float64_result():
    exact = [torch.tensor([1.0, 2.0], dtype=torch.float64)]
    assert worker.error([torch.tensor([1.0, 2.0])], exact) == 0
    assert worker.error([torch.tensor([1.1, 2.2])], exact) == pytest.approx(0.1)
    assert worker.error([torch.tensor([1.0])], exact) == float("inf")
    assert worker.error([], exact) == float("inf")


def test_what_is_not_a_number_is_as_far_as_can_be():
    exact = [torch.ones(2, dtype=torch.float64)]
    assert accuracy.errors([torch.tensor([1.0, float("nan")])], exact) == [float("inf")]


def draws(*rows):
    return [list(row) for row in rows]


EAGER = draws((1e-7, 2e-7), (1.1e-7, 2.2e-7), (0.9e-7, 1.8e-7), (1e-7, 2e-7))


def test_a_flip_is_left_out_and_counted_on_either_side():
    flipped = [[1e-7, 3e-3], *EAGER[1:]]
    for ours, eager in ((flipped, EAGER), (EAGER, flipped)):
        found = accuracy.compared(ours, eager, ["loss", "w"])
        assert found["error"] / found["eager_error"] == pytest.approx(1, abs=0.02)
        assert found["worst_ratio"] == pytest.approx(1, abs=0.04)
        assert (found["flips"], found["eager_flips"]) == (int(ours is flipped), int(eager is flipped))


def test_one_gradient_that_is_less_exact_is_named():
    found = accuracy.compared([[a, 3 * b] for a, b in EAGER], EAGER, ["loss", "w"])
    assert found["worst_ratio"] == pytest.approx(3)
    assert found["worst_output"] == "w"
    assert found["error"] / found["eager_error"] == pytest.approx(3**0.5)
    assert found["flips"] == 0


def test_a_loss_that_is_near_by_chance_does_not_make_others_flips():
    near = [[1e-9, 2e-7], [2e-9, 2e-7], *([1e-5, 2e-7] for _ in range(6))]
    found = accuracy.compared(near, near, ["loss", "w"])
    assert found["flips"] == 0
    assert found["error"] == pytest.approx((1e-5 * 2e-7) ** 0.5)


def test_what_is_wrong_on_one_input_is_no_flip():
    for wrong in (0.5, float("inf")):
        found = accuracy.compared([[1e-7, wrong], *EAGER[1:]], EAGER, ["loss", "w"])
        assert found["worst_ratio"] > 1e5
        assert found["flips"] == 0


def test_models_that_flip_are_measured_more_often():
    tokens, pictures = {"ids": torch.arange(5)}, {"x": torch.ones(5)}
    assert not accuracy.enough(tokens, EAGER[:3], EAGER[:3])
    assert accuracy.enough(tokens, EAGER, EAGER)
    assert not accuracy.enough(pictures, EAGER, EAGER)
    flipped = [[1e-7, 3e-3], *EAGER[1:]]
    assert not accuracy.enough(tokens, EAGER, flipped)
    for inputs in (tokens, pictures):
        assert accuracy.enough(inputs, flipped * 3, EAGER * 3)


def test_the_ratios_of_gradients_are_shown():
    rows = [
        {"model": "m", "impl": "eager", "milliseconds": 1.0, "rounds_ms": [1.0]},
        {"model": "m", "impl": "braze", "milliseconds": 1.0, "rounds_ms": [1.0], "error": 3e-7, "eager_error": 2e-7,
         "worst_ratio": 2.25},
    ]  # fmt: skip
    assert "1.50 (2.25)" in shown(report.models_table(rows, ("eager", "braze")))


def test_inputs_are_drawn_of_their_kind():
    inputs = {"x": torch.zeros(50), "ids": torch.arange(50), "mask": torch.tensor([1, 1, 0]), "flag": True}
    assert accuracy.inputs_of(inputs, 0) == inputs
    one, again, other = (accuracy.inputs_of(inputs, draw) for draw in (1, 1, 2))
    assert torch.equal(one["x"], again["x"]) and not torch.equal(one["x"], other["x"])
    assert torch.equal(one["ids"].sort().values, inputs["ids"]) and not torch.equal(one["ids"], other["ids"])
    assert one["mask"] is inputs["mask"] and one["flag"] is True


@pytest.mark.parametrize("chain", [rows._CHAIN, 1 << 30], ids=["as it is", "one chain for each sum"])
def test_sums_that_lose_more_are_seen(monkeypatch, chain):
    """Of a small model, whose means and gradients are sums of 65,536, by the measure of the benchmark."""

    def build():
        layers = [torch.nn.BatchNorm1d(8), torch.nn.SiLU(), torch.nn.BatchNorm1d(8)]
        return torch.nn.Sequential(*layers), {"input": torch.randn(16, 8, 4096)}

    monkeypatch.setitem(zoo.CASES, "small", zoo.Case("small", build))
    monkeypatch.setattr(rows, "_CHAIN", chain)
    one = worker.Worker("braze")
    one.load("small", "training")
    one.compile()
    found = one.check()
    if chain < 64:
        assert found["error"] < 1.5 * found["eager_error"] and found["worst_ratio"] < 2, found
    else:
        assert found["error"] > 2 * found["eager_error"] and found["worst_ratio"] > 4, found
    assert found["flips"] == found["eager_flips"] == 0


def test_the_time_of_graphs_is_told_apart_from_their_captures(monkeypatch):
    now = [0.0]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr(worker, "time", clocks)

    def slow(x):
        now[0] += 5
        return x + 1

    graph = torch.fx.Graph()
    graph.output((graph.call_function(slow, (graph.placeholder("x"),)),))
    backend = worker.Clocked()
    call = backend(torch.fx.GraphModule({}, graph), [])
    for _ in range(2):
        now[0] += 3
        assert call(torch.ones(1))[0].item() == 2
    assert (backend.seconds, backend.cpu_seconds) == (10, 5)


def test_a_worker_reports_failures_and_goes_on(tmp_path):
    child = run.Child("eager", tmp_path)
    try:
        with pytest.raises(run.Failed, match="KeyError"):
            child.ask("load", model="no such model")
        assert child.ask("overhead", case="add")["seconds"] > 0
    finally:
        child.stop()
    assert child.process.poll() == 0


def test_a_worker_that_dies_is_replaced():
    team = run.Team(["eager"])
    try:
        first = team.child("eager")
        first.process.kill()
        first.process.wait()
        with pytest.raises(run.Failed, match="ended with status"):
            first.ask("reset")
        assert team.child("eager") is not first
    finally:
        team.stop()
    assert not team.folder.exists()


def test_the_kernels_table_has_shares_and_their_mean():
    rows = [
        {"case": "sum", "impl": "eager", "ms": 2.0, "share": 0.5},
        {"case": "sum", "impl": "braze", "ms": 1.0, "share": 1.0, "difference": 1e-7},
        {"case": "max", "impl": "eager", "ms": 2.0, "share": 0.5},
        {"case": "max", "impl": "braze", "failed": "no"},
    ]
    text = shown(report.kernels_table(rows, ("eager", "braze")))
    assert "50 (2.000)" in text and "100 (1.000)" in text and "1.0e-07" in text and "failed" in text
    assert [x for x in text.splitlines()[-2].split() if x.isdigit()] == ["50", "100"]


def test_the_command_line_tells_of_its_words(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "--limit" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["add", "mm", "cumsum"])
@pytest.mark.parametrize("elements", [16, 4096])
def test_an_operators_sample_has_about_the_elements_that_are_wanted(name, elements):
    from benchmarks import operators

    function, drawn = operators.sample(name, "float32", elements)
    given = (drawn.input, *drawn.args)
    assert list(operators.tensors(function(*given, **drawn.kwargs)))
    count = sum(t.numel() for t in operators.tensors((given, drawn.kwargs)))
    assert elements / 8 <= count <= 4 * elements + 64


def test_operators_that_are_slower_than_eager_are_listed_worst_first():
    from benchmarks import operators

    rows = [
        {"operator": name, "dtype": "float32", "elements": 16, "speed": speed, "eager_us": speed, "braze_us": 1.0}
        for name, speed in (("add", 2.0), ("mm", 0.5), ("sub", 0.98), ("mul", 0.25))
    ]  # fmt: skip
    rows.append({"operator": "div", "dtype": "float32", "elements": 16, "failed": "not measured"})
    table = operators.operators_table(rows)
    cells = [list(column.cells) for column in table.columns]
    assert cells[2:5] == [["4"], ["0.70"], ["2"]]
    assert [line.split()[1] for line in cells[5][0].splitlines()] == ["mul", "mm"]


def test_programs_among_which_cliffs_are_looked_for_are_made_alike_each_time():
    case = cliff_cases.CASES["normalize, backward"]
    (a,), (b,) = case.make(4, cliff_cases.Draw("cpu")), case.make(4, cliff_cases.Draw("cpu"))
    assert torch.equal(a, b) and a.shape == (4, 256) and case.grad
    assert all(0 < few < many for few, many in (c.rows for c in cliff_cases.CASES.values()))


def test_a_cliff_is_measured_and_checked_beside_eager(monkeypatch, tmp_path):
    monkeypatch.setattr(cliffs, "ROUNDS", 1)
    monkeypatch.setattr(cliffs, "RUN_S", 1e-4)
    row = cliffs.measure(compiled, "normalize, backward", False, ("braze",), "cpu", str(tmp_path / "lock"))
    assert row["speed"] > 0 and row["error"] < 1e-6 and "wrong" not in row


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_program_is_that_of_its_seed_and_runs_at_other_numbers_of_rows(seed):
    drawn = cliff_programs.program(seed)
    assert drawn == cliff_programs.program(seed) and 3 <= len(drawn.lines) <= 9
    case = drawn.case()
    assert all(f"x{i}" in drawn.source for i in range(len(drawn.inputs)))
    for count in (8, 24):
        found = cliff_errors.call_of(case, case.fn, count, "cpu")()
        assert found and all(isinstance(x, torch.Tensor) for x in found)
    assert cliff_programs.FEW[0] // 16 <= sum(
        x.nbytes for x in case.make(case.rows[0], cliff_cases.Draw("cpu"))
    )


def test_functions_of_drawn_shapes_are_those_of_their_seeds_and_run():
    """Each function is drawn, and of its dims one is the number of rows."""
    drawn = [cliff_shapes.program(seed) for seed in range(80)]
    assert drawn == [cliff_shapes.program(seed) for seed in range(80)]
    assert len({each.lines[0].split("(")[0] for each in drawn}) > 10
    for each in drawn[:20]:
        case = each.case()
        assert all(x.inputs[0].shape.count(0) == 1 for x in drawn) and min(case.rows) >= 8
        assert all(isinstance(x, torch.Tensor) for x in cliff_errors.call_of(case, case.fn, 8, "cpu")())


def test_drawn_programs_are_of_many_idioms():
    text = "".join(cliff_programs.program(seed).source for seed in range(60))
    words = (
        "softmax",
        ".sum(",
        "cat(",
        "permute",
        "norm(",
        "F.pad",
        "cumsum",
        "gather",
        "bfloat16",
        "F.linear",
    )
    assert sum(word in text for word in words) >= 8


def test_a_drawn_cliff_is_told_with_its_seed_its_source_and_its_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(cliffs, "ROUNDS", 1)
    monkeypatch.setattr(cliffs, "RUN_S", 1e-4)
    row = cliffs.measure(compiled, "random 5", False, ("braze",), "cpu", str(tmp_path / "lock"))
    assert row["source"] == cliff_programs.program(5).source and "wrong" not in row
    row |= {"case": "random 5", "rows": "few", "speed": 0.5, "kernels": {"braze": [["slow_kernel", 2, 9.5]]}}
    text = shown(cliffs.cliffs_table([row]))
    assert "random 5: 0.5 x eager" in text and "def program(x0" in text and "slow_kernel" in text
    row["speed"] = 0.95
    assert "def program(x0" not in shown(cliffs.cliffs_table([row]))


def test_a_wrong_result_is_told_beside_the_cliffs():
    right = torch.randn(8, 8)
    case = cliff_cases.Case(lambda x: x * 2, lambda n, g: (right,), (1, 1))
    results = {"eager": [right * 2], "braze": [right * 2.01]}
    found = cliff_errors.checked(case, 1, "cpu", results, lambda seed: results)
    assert "error 5" in found["wrong"] and "in 9 of 9 draws" in found["wrong"]
    row = {"case": "doubled", "rows": "many", "speed": 0.5, "eager_us": 2.0, "braze_us": 4.0, **found}
    text = shown(cliffs.cliffs_table([row]))
    assert "0.50 doubled (2, 4, nan)" in text and "doubled, many: error" in text


@pytest.mark.parametrize(("impl", "told"), [("eager", False), ("braze", True)])
def test_infinities_at_other_places_than_float64s_are_wrong_where_they_are_ours_alone(impl, told):
    """A mask of minus infinity ends a rounding away from float64's: the one that has it elsewhere is the one that is further away."""
    right = torch.randn(8, 8).masked_fill(torch.eye(8) > 0, float("-inf"))
    case = cliff_cases.Case(lambda x: x * 2, lambda n, g: (right,), (1, 1))
    results = {"eager": [right * 2], "braze": [right * 2]} | {impl: [(right * 2).flip(0)]}
    found = cliff_errors.checked(case, 1, "cpu", results, lambda seed: results)
    assert ("wrong" in found) is told


def test_a_device_is_busy_once_in_kernels_that_overlap():
    """A kernel that is launched early waits for the one before it, and its time holds that one's end."""

    def event(start, end, kind=torch.autograd.DeviceType.CUDA, waits=False):
        span, own = SimpleNamespace(start=start, end=end), 0 if waits else end - start
        return SimpleNamespace(time_range=span, device_type=kind, self_device_time_total=own)

    events = [event(20, 35), event(0, 10), event(4, 16), event(6, 8), event(40, 41)]
    events += [event(0, 100, torch.autograd.DeviceType.CPU), event(0, 100, waits=True)]
    assert profiled.busy(events) == 16 + 15 + 1


def test_an_error_that_other_numbers_do_not_have_is_told_as_one_that_may_be_chance():
    case = cliff_cases.Case(lambda x: x * 2, lambda n, g: (g.f32(8, 8),), (1, 1))

    def results(seed):
        right = cliff_errors.call_of(case, case.fn, 1, "cpu", seed)()[0]
        return {"eager": [right], "braze": [right * (1.01 if seed in (0, 5) else 1)]}

    found = cliff_errors.checked(case, 1, "cpu", results(0), results)
    assert "wrong" not in found and "in 2 of 9 draws" in found["seldom"]
    row = {"case": "doubled", "rows": "many", "speed": 2.0, **found}
    assert "doubled, many: error" in shown(cliffs.cliffs_table([row]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.bfloat16().float(),
        lambda x: x.half().float(),
        lambda x: x.to(torch.bfloat16).float(),
        lambda x: x.type(dtype=torch.bfloat16).float(),
        lambda x: torch.zeros_like(x, dtype=torch.bfloat16).copy_(x).float(),
    ],
)
def test_roundings_that_eager_makes_on_its_way_are_errors_of_eager(fn):
    """Not part of the program's result in float64, beside which an answer without them would be the wrong one."""
    case = cliff_cases.Case(fn, lambda n, g: (g.f32(8, 8),), (1, 1))
    (unrounded,) = case.make(1, cliff_cases.Draw("cpu"))
    results = {"eager": [fn(unrounded)], "braze": [unrounded]}
    found = cliff_errors.checked(case, 1, "cpu", results, lambda seed: results)
    assert found["error"] == 0 and found["eager_error"] > 1e-5 and "wrong" not in found


def test_gradients_that_come_in_are_those_of_the_results_type_in_float64_too():
    case = cliff_cases.Case(lambda x: x * 2, lambda n, g: (g.bf(64, 8),), (1, 1), grad=True)
    eager = cliff_errors.call_of(case, case.fn, 1, "cpu")()
    exact = cliff_errors.call_of(case, case.fn, 1, "cpu", like=eager)()
    assert exact[1].dtype is torch.float64 and torch.equal(exact[1], eager[1].double())


@pytest.mark.parametrize("seed", [1314, 1320])
def test_drawn_programs_that_pass_through_half_are_no_further_from_float64_than_eager(seed):
    """Both were told as wrong: beside a float64 that was rounded as eager rounds, and beside eager for want of one."""
    case = cliff_programs.program(seed).case()
    calls = {"eager": case.fn, "braze": braze.compile(case.fn)}

    def results(seed):
        return {impl: cliff_errors.call_of(case, fn, 16, "cpu", seed)() for impl, fn in calls.items()}

    found = cliff_errors.checked(case, 16, "cpu", results(0), results)
    assert "unchecked" not in found and "wrong" not in found and found["eager_error"] > 1e-4
