"""What makes no sense is refused in words, at the call that says it, and leaves nothing half done."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze import forward_context, serve
from braze.serving import (
    AttentionCGSupport,
    CompilationConfig,
    CompilerManager,
    Config,
    CUDAGraphMode,
    CUDAGraphWrapper,
    Dispatcher,
    Engine,
    ForwardContext,
    GraphPools,
    ModelRunner,
    NgramDrafter,
    RunnerOptions,
    SamplingParams,
    ServingBackend,
    Slot,
    compile_decoder,
    direct_register_custom_op,
    load_model,
    split_graph,
    support_torch_compile,
    write_random,
)
from braze.support import log
from braze.support.errors import UserError
from tests.serving.engine.tiny import engine, limits, tiny


class Doubled(nn.Module):
    """A module of one argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def code_of(call, *words: str) -> str:
    """The code of the error of a call, whose text has these words."""
    with pytest.raises(UserError) as error:
        call()
    for word in words:
        assert word in str(error.value)
    return error.value.code


# -- configurations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        dict(num_speculative_tokens=None), dict(num_speculative_tokens="two"), dict(num_speculative_tokens=-1),
        dict(data_parallel_rank=None), dict(data_parallel_rank=-1), dict(data_parallel_rank=0.0),
        dict(compilation_config=3), dict(compilation_config={"level": 3}),
        dict(variants=()), dict(variants=5), dict(variants="ab"), dict(variants=([],)),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_of_an_engine_that_means_nothing_is_named(given):
    assert code_of(lambda: Config(**given), f"{next(iter(given))}= does not take") == "BZ7103"


def test_attention_is_what_its_name_or_number_says_and_nothing_else():
    config = Config(compilation_config=CompilationConfig(level=3, cudagraph_mode="FULL"))
    for said in (AttentionCGSupport.ALWAYS, "always", 3):
        assert config.resolve(said).mode is CUDAGraphMode.FULL
    assert code_of(lambda: config.resolve("alway"), "did you mean 'ALWAYS'?") == "BZ7103"
    for said in (None, 4, True, []):
        assert code_of(lambda said=said: config.resolve(said), "attention=") == "BZ7103"
    assert code_of(lambda: serve(Doubled(), attention="sometimes")) == "BZ7103"


def test_a_pattern_far_beyond_the_buffers_is_no_longer_than_they_are():
    told: list[str] = []
    with log.listen(told.append):
        config = Config(
            compilation_config=CompilationConfig(level=3, cuda_graph_sizes=[10**12]),
            max_num_batched_tokens=64,
            max_num_seqs=64,
        )
    assert config.graph_bs == (1, 2, 4, 8, 16, 32, 48, 64)
    assert len(told) == 1
    assert len(told[0]) < 200


def test_of_many_sizes_that_are_left_out_a_few_are_told():
    told: list[str] = []
    sizes = CompilationConfig(level=3, cudagraph_capture_sizes=list(range(1, 500)))
    with log.listen(told.append):
        Config(compilation_config=sizes, max_num_seqs=4, max_num_batched_tokens=4)
    assert "..., 499] (495 sizes)" in told[0]


# -- braze.serve ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (dict(dynamic=3), "dynamic="), (dict(dynamic={"x": None}), "dynamic['x']="), (dict(dynamic={"x": True}), "dynamic['x']="),
        (dict(slots={"x": 3}), "slots['x']="), (dict(slots=[1]), "slots="),
    ],
    ids=str,
)  # fmt: skip
def test_dimensions_and_slots_of_another_kind_are_refused(given, word):
    assert code_of(lambda: serve(Doubled(), level=0, **given), word) == "BZ7103"


@pytest.mark.parametrize("slot", [Slot(pad="first"), Slot(unit="token"), Slot(extra=-1)], ids=repr)
def test_a_slot_that_cannot_be_is_refused_before_anything_is_called(slot):
    assert code_of(lambda: serve(Doubled(), level=0, slots={"x": slot}), "slots['x']") == "BZ7304"


@pytest.mark.usefixtures("simulated")
def test_a_slot_of_nothing_is_refused_where_it_would_have_padded():
    """A misspelled field of the metadata would be padded by what stood there before."""
    words = dict(level=0, cudagraph_mode="FULL", capture_sizes=[4])
    m = serve(Doubled(), slots={"slot_maping": Slot(pad=-1)}, **words)
    for metadata in ({"slot_mapping": torch.zeros(3)}, None):
        with forward_context(metadata):
            assert code_of(lambda: m(torch.zeros(3)), "'slot_maping'", "neither") == "BZ7103"
    with forward_context({"slot_maping": torch.zeros(3)}):
        assert m(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    serve(Doubled(), slots={"x": Slot()}, **words)(torch.zeros(3))


@pytest.mark.parametrize("model", [None, torch.relu, Doubled])
def test_only_a_module_is_served(model):
    assert code_of(lambda: serve(model), "a module") == "BZ7103"


def test_a_dimension_that_an_argument_has_not_is_told_with_its_shape():
    m = serve(Doubled(), level=0, dynamic={"x": 1})
    assert code_of(lambda: m(torch.zeros(3)), "no dimension 1", "(3,)") == "BZ7308"


def test_what_is_given_goes_before_the_environment_also_where_it_is_the_default(monkeypatch):
    for name, value in dict(
        level="0", capture="lazy", cudagraph_capture_sizes="1,2", verify="always"
    ).items():
        monkeypatch.setenv(f"BRAZE_SERVING_{name.upper()}", value)
    found = serve(Doubled()).config.compilation_config
    assert (found.level, found.capture, found.cudagraph_capture_sizes, found.verify) == (0, "lazy", (1, 2), 1)
    found = serve(Doubled(), level="O2", capture="eager", capture_sizes="auto", verify="off")
    found = found.config.compilation_config
    assert (found.level, found.capture, found.cudagraph_capture_sizes, found.verify) == (3, "eager", None, 0)


@pytest.mark.parametrize(
    "given", [dict(capture_sizes=[1], cudagraph_capture_sizes=[1]), dict(split_ops=[], splitting_ops=[])]
)
def test_two_names_of_one_field_are_not_both_given(given):
    assert code_of(lambda: serve(Doubled(), **given), *given) == "BZ7102"


def test_what_the_rules_leave_contradicts_no_field():
    """A budget stays where attention lets nothing be recorded: that is told, and the model served."""
    told: list[str] = []
    with log.listen(told.append):
        m = serve(Doubled(), level=3, memory_budget="1GiB", split_ops=[], attention="never")
    assert any(line.startswith("BZ7108: cudagraph_mode: rule 7") for line in told)
    assert m(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_an_unknown_word_is_answered_with_each_known_one_once():
    with pytest.raises(UserError) as error:
        serve(Doubled(), zzz=1)
    known = error.value.hints[0].removeprefix("known: ").split(", ")
    assert len(known) == len(set(known))


def test_questions_about_steps_that_cannot_be_are_refused():
    m = serve(Doubled(), level=0, cudagraph_mode="FULL", capture_sizes=[1, 2], max_num_seqs=2)
    for asked in (-1, 3.5, "x"):
        assert code_of(lambda asked=asked: m.explain(asked), "num_tokens=") == "BZ7103"
        assert code_of(lambda asked=asked: m.dispatch(asked), "num_tokens=") == "BZ7103"
    assert code_of(lambda: m.dispatch(4, q=0), "q=") == "BZ7103"
    assert code_of(lambda: m.dispatch(4, -1), "num_reqs=") == "BZ7103"
    for k in (0, -1, None):
        assert code_of(lambda k=k: m.suggest_sizes(k), "k=") == "BZ7103"


@pytest.mark.parametrize("level", [0, 1])
def test_where_nothing_is_compiled_the_cache_says_so(level):
    assert f"level {level}" in serve(Doubled(), level=level).cache.explain_miss()


def test_sizes_that_fail_for_one_reason_are_told_of_once():
    """On a processor nothing can be recorded, whatever the size."""
    m = serve(Doubled(), level=0, cudagraph_mode="FULL", capture_sizes=[1, 2, 4, 8], max_num_seqs=8)
    told: list[str] = []
    with log.listen(told.append):
        m(torch.zeros(3))
    assert len([line for line in told if "BZ7310" in line]) == 1
    assert len(m.stats().failures) == 4


@pytest.mark.parametrize(
    "given", [dict(uniform_q="two"), dict(uniform_q=0), dict(num_reqs=-1), dict(num_reqs=1.5)], ids=str
)
def test_a_batch_of_no_number_is_refused(given):
    assert code_of(lambda: forward_context(**given), f"{next(iter(given))}=") == "BZ7103"


def test_a_step_runs_in_a_mode_not_in_its_name():
    assert code_of(lambda: ForwardContext(cudagraph_runtime_mode="FULL"), "a CUDAGraphMode") == "BZ7103"


# -- parts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [CompilerManager, ServingBackend])
def test_what_compiles_takes_a_configuration_or_an_engines(part):
    config = CompilationConfig(level=3)
    assert part(config).config is config
    assert part(Config(compilation_config=config)).config is config
    for other in (None, {"level": 3}):
        assert code_of(lambda other=other: part(other), "a CompilationConfig") == "BZ7103"


def test_operators_to_split_at_are_a_list():
    graph = torch.fx.symbolic_trace(Doubled())
    assert code_of(lambda: split_graph(graph, "aten::mm"), "['aten::mm']") == "BZ7203"


@pytest.mark.parametrize("mode", ["FULL", None, CUDAGraphMode.NONE, CUDAGraphMode.FULL_AND_PIECEWISE])
def test_a_wrapper_records_in_a_mode_of_a_step(mode):
    assert code_of(lambda: CUDAGraphWrapper(torch.relu, mode)) == "BZ7206"


def written(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (dict(op_name="of::mine"), "identifier"), (dict(op_name="of mine"), "identifier"), (dict(op_func=3), "int"),
        (dict(mutates_args="out"), "['out']"), (dict(dispatch_key="GPU"), "'GPU'"),
    ],
    ids=str,
)  # fmt: skip
def test_an_operator_that_cannot_be_is_not_half_registered(changes, word):
    words = dict(op_name="wrong_use", op_func=written, mutates_args=["out"], dispatch_key="CPU") | changes
    assert code_of(lambda: direct_register_custom_op(**words), word) == "BZ7202"
    assert not hasattr(torch.ops.braze, "wrong_use")


@pytest.mark.parametrize("thing", [3, torch.relu, dict, nn.Linear(2, 2)])
def test_only_a_class_of_modules_is_equipped(thing):
    assert code_of(lambda: support_torch_compile(thing), "class of modules") == "BZ7215"


@pytest.mark.parametrize("dims", ["a", None, [], 1.5, {0: 1}, {"a": "b"}, {0: "a b"}], ids=repr)
def test_dimensions_of_a_class_are_numbers(dims):
    class Mine(Doubled):
        pass

    assert (
        code_of(lambda: support_torch_compile(Mine, dynamic_arg_dims={"x": dims}), "dynamic_arg_dims['x']")
        == "BZ7215"
    )


# -- the engine -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [dict(stop="a"), dict(stop=5), dict(stop=(-1,)), dict(stop=(True,)), dict(ignore_eos=1)], ids=str
)
def test_sampling_parameters_of_another_kind_are_refused(given):
    assert code_of(lambda: SamplingParams(**given), next(iter(given))) == "BZ7405"


@pytest.mark.parametrize(
    "given",
    [dict(cudagraph_mode="FULL"), dict(cudagraph_mode=None), dict(overlap=1), dict(enforce_eager=0)],
    ids=str,
)
def test_options_of_a_runner_of_another_kind_are_refused(given):
    assert (
        code_of(lambda: ModelRunner(tiny(), limits(), RunnerOptions(**given)), next(iter(given))) == "BZ7411"
    )


def test_prompts_are_taken_all_or_none():
    """A request that nobody waits for would be served with the next ones."""
    e = engine(tiny())
    for wrong in ([], [1.5], ["a"], [97]):
        assert code_of(lambda wrong=wrong: e.generate([[1, 2], wrong])) == "BZ7406"
        assert e.scheduler.idle()
    assert (
        code_of(lambda: e.generate([[1], [2]], [SamplingParams()]), "1 sampling parameters", "2 prompts")
        == "BZ7405"
    )
    assert e.scheduler.idle()


# -- parts of an engine, by themselves -----------------------------------------------------------------

DISPATCHER = dict(mode=CUDAGraphMode.FULL, sizes=(1, 2), max_num_seqs=4, max_num_batched_tokens=8)


def refused(call, *words: str) -> str:
    """The code of the error of a call, which says what to do."""
    with pytest.raises(UserError) as error:
        call()
    assert error.value.hints
    for word in words:
        assert word in str(error.value)
    return error.value.code


@pytest.mark.parametrize(
    "given",
    [
        dict(mode="FULL"), dict(mode=None), dict(sizes=None), dict(sizes=[0]), dict(sizes=["a"]), dict(max_num_seqs=0),
        dict(max_num_seqs=1.5), dict(max_num_batched_tokens=-1), dict(uniform_query_lens=3), dict(uniform_query_lens=(0,)),
        dict(variants=3), dict(variants=([],)), dict(enforce_eager="maybe"),
    ],
    ids=str,
)  # fmt: skip
def test_a_dispatcher_of_what_means_nothing_is_refused(given):
    name = next(iter(given))
    assert refused(lambda: Dispatcher(**{**DISPATCHER, **given}), name) == "BZ7103"


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", None, [], True], ids=str)
def test_a_step_of_what_is_no_number_is_not_dispatched(wrong):
    d = Dispatcher(**DISPATCHER)
    if wrong != "2":  # as in a file
        for step in ((wrong, 1, 1), (1, wrong, 1), (1, 1, wrong)):
            assert refused(lambda step=step: d.dispatch(*step[:2], max_query_len=step[2])) == "BZ7103"
    assert d.dispatch(1, 1, max_query_len=1).mode is CUDAGraphMode.FULL


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: NgramDrafter(0), "BZ7103"),
        (lambda: NgramDrafter("two"), "BZ7103"),
        (lambda: NgramDrafter(2, longest=1, shortest=2), "BZ7102"),
        (lambda: GraphPools(3), "BZ7205"),
        (lambda: GraphPools(["shared"]), "BZ7205"),
        (lambda: CUDAGraphWrapper("model", CUDAGraphMode.FULL), "BZ7103"),
        (lambda: split_graph("graph", ["aten::add"]), "BZ7103"),
        (lambda: compile_decoder(Doubled()), "BZ7103"),
        (lambda: load_model(None), "BZ7103"),
        (lambda: write_random("somewhere", [1]), "BZ7103"),
        (lambda: support_torch_compile(dynamic_arg_dims=0)(type("Mine", (Doubled,), {})), "BZ7103"),
        (lambda: serve(Doubled(), slots=[]), "BZ7103"),
        (lambda: serve(Doubled(), slots=0), "BZ7103"),
        (lambda: serve(Doubled(), reduce=None), "BZ7103"),
        (lambda: serve(Doubled(), evaluate_guards="perhaps"), "BZ7103"),
        (lambda: serve(Doubled(), level=0).idle("all"), "BZ7103"),
        (lambda: serve(Doubled(), level=0).idle(-1), "BZ7103"),
        (lambda: forward_context(variant=[]), "BZ7103"),
        (lambda: forward_context(attn_metadat=1), "BZ7101"),
    ],
)
def test_parts_given_what_they_cannot_be_say_what_they_take(call, code):
    assert refused(call) == code


def test_limits_say_what_they_take():
    wrong = limits(share_prefixes="yes")
    runner = lambda: ModelRunner(tiny(), wrong, RunnerOptions(CUDAGraphMode.NONE))
    assert refused(runner, "share_prefixes= takes True or False") == "BZ7411"


def test_an_engine_says_what_a_request_and_a_cache_are():
    e = engine(tiny())
    for wrong in (None, 3, "text", b"text"):
        assert refused(lambda wrong=wrong: e.add(wrong), "no prompt") == "BZ7406"
    for wrong in ({}, 0, "greedy"):
        assert refused(lambda wrong=wrong: e.add([1], wrong), "SamplingParams") == "BZ7103"
    assert refused(lambda: e.add([]), "prompt is empty") == "BZ7406"
    assert refused(lambda: e.add([1] * 64), "larger Limits") == "BZ7406"
    assert refused(lambda: e.generate([[1]], [SamplingParams()] * 2), "2 sampling parameters") == "BZ7405"
    assert e.scheduler.idle()
    runner = e.runner
    for wrong in (1.5, "all", True, -1):
        assert refused(lambda wrong=wrong: runner.allocate_cache(wrong), "blocks=") == "BZ7103"
        assert refused(lambda wrong=wrong: runner.idle(wrong), "most=") == "BZ7103"
    assert refused(lambda: runner.allocate_cache(memory="1GB"), "memory=") == "BZ7103"
    assert refused(lambda: runner.dummy_run(-1), "tokens=") == "BZ7103"
    assert runner.blocks == 128
    bare = Engine(ModelRunner(tiny(), limits(), RunnerOptions(CUDAGraphMode.NONE)))
    assert refused(lambda: bare.add([1]), "allocate_cache()") == "BZ7406"


def test_a_server_of_weights_of_an_unknown_type_is_refused(tmp_path):
    launch = pytest.importorskip("braze.serving.server.launch")
    options = launch.LaunchOptions(dtype="double")
    assert refused(lambda: launch.make_engine(tmp_path, options), "one of float32, bfloat16") == "BZ7411"
