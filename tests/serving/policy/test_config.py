"""Configurations: every field checked, precedence, contradictions, and what an engine makes of them."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
import torch

from braze.serving import AttentionCGSupport, CUDAGraphMode
from braze.serving.policy.config import CompilationConfig
from braze.serving.policy.engine_config import Config
from braze.serving.policy.fields import FIELDS
from braze.serving.policy.levels import ATTENTION_OPS, CompilationLevel
from braze.serving.policy.sizes import pattern
from braze.support import log
from braze.support.errors import UserError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
BOTH = CUDAGraphMode.FULL_AND_PIECEWISE


def made(**given) -> CompilationConfig:
    return CompilationConfig(environ=given.pop("environ", {}), **given)


@contextlib.contextmanager
def heard():
    """What is told inside a block, also if it was told before."""
    said = []
    with log.listen(said.append):
        yield said


def refused(code: str, **given) -> UserError:
    with pytest.raises(UserError) as error:
        made(**given)
    assert error.value.code == code, error.value
    assert error.value.hints
    return error.value


def test_the_defaults_are_the_seeds():
    config = made()
    assert config.level is CompilationLevel.NO_COMPILATION
    assert config.use_cudagraph
    assert config.cudagraph_capture_sizes is None
    assert config.cuda_graph_sizes == (512,)
    assert config.cudagraph_mode is NONE
    assert config.splitting_ops is None
    assert not config.cudagraph_copy_inputs
    assert config.use_inductor
    assert config.compile_sizes is None
    assert config.inductor_compile_config == {}
    assert config.debug_dump_path == config.cache_dir == ""


@pytest.mark.parametrize(
    ("given", "level", "mode"),
    [
        (0, 0, NONE),
        ("1", 1, NONE),
        ("dynamo_once", 2, NONE),
        (CompilationLevel.PIECEWISE, 3, PIECEWISE),
        ("VLLM_COMPILE", 3, PIECEWISE),
        ("O0", 0, NONE),
        ("O1", 3, PIECEWISE),
        ("o2", 3, BOTH),
        ("O3", 3, BOTH),
    ],
)
def test_a_level_brings_its_preset(given, level, mode):
    config = made(level=given)
    assert (config.level, config.cudagraph_mode) == (level, mode)
    assert config.splitting_ops == (ATTENTION_OPS if level == 3 else None)


@pytest.mark.parametrize("level", [4, -1, True, "O4", "PIECEWIES", 1.5, None])
def test_what_is_no_level_is_refused(level):
    if level is None:
        with pytest.raises(UserError):
            made(level=level, cudagraph_mode="FULL", use_cudagraph=False)
        return
    error = refused("BZ7103", level=level)
    if level == "PIECEWIES":
        assert "did you mean 'PIECEWISE'?" in error.hints


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("full", FULL),
        (CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_DECODE_ONLY),
        ((2, 1), BOTH),
        (1, PIECEWISE),
        ({"decode": "full", "mixed": "piecewise"}, BOTH),
        ({"decode": FULL, "mixed": "none"}, CUDAGraphMode.FULL_DECODE_ONLY),
        ({"decode": "disabled", "mixed": "disabled"}, NONE),
    ],
)
def test_a_mode_by_its_words(given, mode):
    assert made(level=3, cudagraph_mode=given).cudagraph_mode is mode


def test_breakable_splits_the_recording():
    config = made(level=3, cudagraph_mode={"decode": "full", "mixed": "breakable"})
    assert (config.cudagraph_mode, config.split) == (BOTH, "capture")
    refused("BZ7102", level=3, split="graph", cudagraph_mode={"decode": "full", "mixed": "breakable"})


@pytest.mark.parametrize(
    "mode",
    [
        "FUL",
        3,
        True,
        {"decode": "full"},
        {"decode": "full", "mixed": "some"},
        {"decode": "none", "mixed": "full"},
    ],
)
def test_what_is_no_mode_is_refused(mode):
    refused("BZ7103", level=3, cudagraph_mode=mode)


def test_an_unknown_field_is_refused_with_the_nearest():
    error = refused("BZ7101", cudagraph_capture_size=[1])
    assert "did you mean 'cudagraph_capture_sizes'?" in error.hints
    error = refused("BZ7101", environ={"BRAZE_SERVING_LEVLE": "3"})
    assert "did you mean 'BRAZE_SERVING_LEVEL'?" in error.hints


#: a value that each field refuses
WRONG = {
    "level": 7,
    "use_cudagraph": 2,
    "cudagraph_mode": "half",
    "cudagraph_capture_sizes": [0],
    "cuda_graph_sizes": [],
    "max_cudagraph_capture_size": -1,
    "splitting_ops": ["no library"],
    "split": "grpah",
    "cudagraph_copy_inputs": "maybe",
    "use_inductor": None,
    "compile_sizes": ["cudagraph_sizes"],
    "compile_ranges_endpoints": [1.5],
    "inductor_compile_config": [1],
    "custom_ops": ["rms_norm"],
    "debug_dump_path": 3,
    "cache_dir": 3,
    "pool": "own",
    "capture": "later",
    "memory_budget": "2 GB of it",
    "verify": "sample:2/1",
}


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_every_field_refuses_a_value_of_another_kind(name):
    refused("BZ7103", **{name: WRONG[name]})


#: what each field takes from the environment, and the value that it becomes
WORDS = {
    "level": ("O2", CompilationLevel.PIECEWISE),
    "use_cudagraph": ("0", False),
    "cudagraph_mode": ('{"decode": "full", "mixed": "piecewise"}', BOTH),
    "cudagraph_capture_sizes": ("1, 2,4", (1, 2, 4)),
    "cuda_graph_sizes": ("64", (64,)),
    "max_cudagraph_capture_size": ("64", 64),
    "splitting_ops": ("mylib.attention,mylib::mla", ("mylib::attention", "mylib::mla")),
    "split": ("capture", "capture"),
    "cudagraph_copy_inputs": ("true", True),
    "use_inductor": ("false", False),
    "compile_sizes": ("8,cudagraph_capture_sizes", (8, "cudagraph_capture_sizes")),
    "compile_ranges_endpoints": ("64,512", (64, 512)),
    "inductor_compile_config": ('{"fusion": false}', {"fusion": False}),
    "custom_ops": ("none,+rms_norm", ("none", "+rms_norm")),
    "debug_dump_path": ("/d", "/d"),
    "cache_dir": ("/c", "/c"),
    "pool": ("shared", "shared"),
    "capture": ("lazy", "lazy"),
    "memory_budget": ("1.5GiB", 3 << 29),
    "verify": ("sample:1/256", 1 / 256),
}


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_every_field_has_its_variable(name):
    text, value = WORDS[name]
    level = {} if name == "level" else {"level": 3}
    config = made(environ={f"BRAZE_SERVING_{name.upper()}": text}, **level)
    assert getattr(config, name) == value
    assert config.sources[name].kind == "environment"
    assert f"environment: BRAZE_SERVING_{name.upper()}" in config.explain()


def test_what_is_given_goes_before_the_environment_the_preset_and_the_default():
    variable = {"BRAZE_SERVING_CUDAGRAPH_MODE": "FULL"}
    assert made(level=3, cudagraph_mode="PIECEWISE", environ=variable).cudagraph_mode is PIECEWISE
    assert made(level=3, environ=variable).cudagraph_mode is FULL
    assert made(level="O2").cudagraph_mode is BOTH
    assert made().cudagraph_mode is NONE


def test_explain_says_where_each_value_comes_from():
    lines = made(level="O2", pool="shared", environ={"BRAZE_SERVING_VERIFY": "always"}).explain().splitlines()
    said = {line.split()[0]: line for line in lines}
    assert set(said) == {field.name for field in FIELDS}
    assert said["level"].endswith("PIECEWISE  (given)")
    assert said["cudagraph_mode"].endswith("FULL_AND_PIECEWISE  (O2)")
    assert said["verify"].endswith("1.0  (environment: BRAZE_SERVING_VERIFY)")
    assert said["cuda_graph_sizes"].endswith("(512,)  (default)")


def test_explain_says_what_has_no_effect():
    said = made(level=0, cudagraph_capture_sizes=[1, 2], inductor_compile_config={"fusion": False}).explain()
    assert "(1, 2)  (given; no effect: cudagraph_mode is NONE)" in said
    assert "no effect: nothing is compiled at level 0" in said
    assert "no effect" not in made(level=2, cache_dir="/c", debug_dump_path="/d").explain()
    said = made(level=2, splitting_ops=["a::b"], split="schedule").explain()
    assert said.count("no effect: nothing is compiled in pieces at level 2") == 2
    copied = dict(cudagraph_mode="PIECEWISE", split="capture", cudagraph_copy_inputs=True)
    assert "no effect: at level 0 inputs are copied" in made(level=0, **copied).explain()
    assert "no effect" not in made(level=3, **copied).explain()
    assert (
        "no effect: cudagraph_capture_sizes is given"
        in made(level=3, cudagraph_capture_sizes=[1], cuda_graph_sizes=[64]).explain()
    )


#: numbers of thousands of digits, arrays, which have no truth, and texts that are almost a list
ODD = {
    "digits": "9" * 5000, "number": 10**5000, "array": np.array([1, 2]), "tensor": torch.tensor([1, 2]), "arabic": "١", "zero": "a\0b",
    "float": "1.5", "bracket": "[1,2", "comma": "1,,2", "sign": "-1GiB", "share": f"sample:1/{10**4000}", "bytes": b"1", "object": object(),
}  # fmt: skip
PATHS = "cache_dir", "debug_dump_path"


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_what_is_no_value_however_odd_is_refused_in_a_few_words(name, kind):
    value = ODD[kind]
    if name in PATHS and isinstance(value, str) and kind != "zero":
        return  # a path may be nearly anything
    assert len(str(refused("BZ7103", **{name: value}))) < 600
    if isinstance(value, str):
        refused("BZ7103", environ={f"BRAZE_SERVING_{name.upper()}": value})


@pytest.mark.parametrize(
    "given",
    [
        dict(level=3, cudagraph_mode="FULL", use_cudagraph=False),
        dict(level=0, cudagraph_mode="PIECEWISE"),
        dict(level=2, cudagraph_mode="FULL_AND_PIECEWISE"),
        dict(level=3, cudagraph_mode="FULL", cudagraph_copy_inputs=True),
        dict(level=3, use_inductor=False, inductor_compile_config={"fusion": False}),
        dict(level=3, use_inductor=False, compile_sizes=[8]),
        dict(level=2, compile_sizes=[8]),
        dict(level=3, use_inductor=False, split="schedule"),
        dict(level=3, max_cudagraph_capture_size=64, cudagraph_capture_sizes=[1, 2, 128]),
        dict(level=3, max_cudagraph_capture_size=4, cuda_graph_sizes=[1, 2, 4, 8]),
        dict(level=3, inductor_compile_config={"cudagraphs": True}),
        dict(custom_ops=["all", "none"]),
        dict(custom_ops=["+rms_norm", "-rms_norm"]),
        dict(level=0, memory_budget="1GiB"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(given):
    refused("BZ7102", **given)


def test_what_only_looks_like_a_contradiction_is_taken():
    assert made(level=0, cudagraph_mode="FULL").cudagraph_mode is FULL
    assert made(level=0, cudagraph_mode="PIECEWISE", split="capture").cudagraph_mode is PIECEWISE
    assert made(level=3, max_cudagraph_capture_size=128, cudagraph_capture_sizes=[1, 128])
    assert made(level=3, use_cudagraph=False).cudagraph_mode is NONE
    assert made(level="O3", use_inductor=False).compile_sizes is None
    assert made(level=3, max_cudagraph_capture_size=8, cuda_graph_sizes=[1, 2, 4, 8])
    assert made(level=3, max_cudagraph_capture_size=4, cudagraph_capture_sizes=[4], cuda_graph_sizes=[1, 8])


def test_operators_given_as_none_are_those_that_the_level_says():
    """An engine that hands its own default on splits at attention, not nowhere."""
    assert made(level=3, splitting_ops=None).splitting_ops == made(level=3).splitting_ops
    assert made(level=0, splitting_ops=None).splitting_ops is None
    assert made(level=3, splitting_ops=[]).splitting_ops == ()


def test_unknown_options_of_the_compiler_are_refused():
    assert "did you mean 'fusion'?" in refused("BZ0003", inductor_compile_config={"fuson": True}).hints


def test_an_empty_list_of_sizes_is_refused():
    refused("BZ7105", level=3, cudagraph_capture_sizes=[])


def test_a_configuration_is_not_assigned_but_replaced():
    config = made(level=3, pool="shared")
    with pytest.raises(UserError) as error:
        config.level = 0
    assert error.value.code == "BZ7101"
    config.static_forward_context["layer"] = 1
    other = config.replace(cudagraph_mode="FULL")
    assert (other.level, other.pool, other.cudagraph_mode) == (3, "shared", FULL)
    assert other.static_forward_context == {"layer": 1}
    assert other != config
    assert config == made(level=3, pool="shared")


def test_the_caches_key_holds_what_changes_code_and_nothing_else():
    one = made(level=3, cudagraph_capture_sizes=[1], cache_dir="/a", debug_dump_path="/b")
    assert one.factors() == made(level=3).factors()
    changes = dict(
        level=2, splitting_ops=["a::b"], split="capture", use_inductor=False, compile_sizes=[8],
        compile_ranges_endpoints=[8], inductor_compile_config={"fusion": False}, custom_ops=["none"],
    )  # fmt: skip
    for name, value in changes.items():
        assert made(**{"level": 3, name: value}).factors() != one.factors(), name


def test_use_inductor_is_our_kernels_or_eager():
    assert made(level=3).compiler_name() == "braze"
    assert made(level=3, use_inductor=False).compiler_name() == "eager"


def test_custom_ops_by_name():
    config = made(custom_ops=["none", "+rms_norm", "+lib::rope"])
    assert config.uses_custom_op("mylib::rms_norm")
    assert config.uses_custom_op("lib::rope")
    assert not config.uses_custom_op("lib::silu")
    assert made().uses_custom_op("lib::silu")
    assert not made(custom_ops=["all", "-silu"]).uses_custom_op("lib::silu")
    assert made(custom_ops=["all"]).uses_custom_op("lib::silu", default=False)


def test_each_rank_dumps_into_a_folder_of_its_own(tmp_path):
    assert made(debug_dump_path=tmp_path).dump_folder(3) == tmp_path / "rank_3"
    assert made().dump_folder() is None


def test_an_engine_captures_the_pattern_within_its_buffers():
    config = Config(compilation_config=made(level=3))
    assert config.graph_bs == pattern(512)
    assert Config(compilation_config=made(level=3), max_num_batched_tokens=100).graph_bs[-1] == 100
    assert Config(compilation_config=made(level=3, cudagraph_capture_sizes=[8, 2, 8])).graph_bs == (2, 8)
    assert Config(compilation_config=made(level=3, cuda_graph_sizes=[3, 7])).graph_bs == (3, 7)
    limited = made(level=3, max_cudagraph_capture_size=20)
    assert Config(compilation_config=limited).graph_bs == (1, 2, 4, 8, 16, 20)
    assert Config(compilation_config=made(level=0)).graph_bs == ()


def test_sizes_that_are_left_out_are_told_of():
    with heard() as said:
        Config(
            compilation_config=made(
                level=0, cudagraph_mode="FULL_DECODE_ONLY", cudagraph_capture_sizes=[4, 999]
            )
        )
    assert any(text.startswith("BZ7107") and "999" in text for text in said)


def test_sizes_come_from_traffic(tmp_path):
    file = tmp_path / "traffic.json"
    file.write_text(json.dumps({"5": 1000, "90": 1000}))
    config = Config(
        compilation_config=made(level=3, cudagraph_capture_sizes=f"traffic:{file}"), max_num_seqs=128
    )
    assert config.traffic is not None
    assert not config.traffic.keep_default
    assert config.graph_bs == (5, 90)
    file.write_text("\n".join(str(n) for n in range(1, 513)))
    config = Config(
        compilation_config=made(level=3, cudagraph_capture_sizes=f"traffic:{file}"), max_num_seqs=128
    )
    assert config.traffic.keep_default
    assert set(config.graph_bs) == {*pattern(512), 128}


def test_a_size_is_compiled_for_only_where_steps_have_it():
    config = made(level=3, cudagraph_capture_sizes=[4, 8], compile_sizes=["cudagraph_capture_sizes", 100])
    assert Config(compilation_config=config).compile_sizes == (4, 8, 100)
    with pytest.raises(UserError) as error:
        Config(compilation_config=made(level=3, cudagraph_capture_sizes=[4, 8], compile_sizes=[5]))
    assert error.value.code == "BZ7106"
    assert "padded to 8" in error.value.why
    # mixed batches that are not recorded are not padded either
    config = made(
        level=3, cudagraph_mode="FULL_DECODE_ONLY", cudagraph_capture_sizes=[4, 8], compile_sizes=[5]
    )
    assert Config(compilation_config=config).compile_sizes == (5,)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL"])
def test_steps_of_requests_that_decode_several_tokens_are_compiled_for_as_they_are_padded(mode):
    """Requests are what is listed, and tokens what a piece is called with."""
    config = made(level="O3", cudagraph_mode=mode, cudagraph_capture_sizes=[1, 2, 4])
    assert set(Config(compilation_config=config).compile_sizes) == {1, 2, 4}
    drafted = Config(compilation_config=config, num_speculative_tokens=2)
    assert set(drafted.compile_sizes) == {1, 2, 4, 3, 6, 12}
    one = made(level=3, cudagraph_mode=mode, cudagraph_capture_sizes=[1, 2, 4], compile_sizes=[6])
    assert Config(compilation_config=one, num_speculative_tokens=2).compile_sizes == (6,)


def test_enforce_eager_compiles_and_records_nothing():
    config = Config(compilation_config=made(), enforce_eager=True)
    assert (config.level, config.cudagraph_mode, config.graph_bs) == (0, NONE, ())
    for given in (dict(level=3), dict(cudagraph_mode="FULL")):
        with pytest.raises(UserError) as error:
            Config(compilation_config=made(**given), enforce_eager=True)
        assert error.value.code == "BZ7102"


def test_a_preset_mode_gives_way_to_attention_and_is_told_of():
    config = Config(compilation_config=made(level="O2"))
    with heard() as said:
        found = config.resolve(AttentionCGSupport.NEVER)
    assert found.mode is PIECEWISE
    assert any(text.startswith("BZ7108: cudagraph_mode: rule 3") for text in said)
    assert config.resolve().mode is BOTH


def test_a_given_mode_does_not_give_way():
    config = Config(compilation_config=made(level=3, cudagraph_mode="FULL_AND_PIECEWISE"))
    with pytest.raises(UserError) as error:
        config.resolve(AttentionCGSupport.NEVER)
    assert error.value.code == "BZ7104"


def test_speculation_makes_the_dispatcher_decode_more_tokens():
    config = Config(compilation_config=made(level="O2"), num_speculative_tokens=2, max_num_seqs=8)
    d = config.dispatcher(config.resolve().mode, query_lens=(1,))
    assert d.dispatch(9, 3, max_query_len=3).descriptor.num_tokens == 12
    assert d.dispatch(3, 3, max_query_len=1).descriptor.num_tokens == 4


@pytest.mark.parametrize(
    "given",
    [
        dict(data_parallel_rank=1),
        dict(num_speculative_tokens=10, max_num_batched_tokens=4),
    ],
)
def test_limits_that_contradict_each_other_are_refused(given):
    with pytest.raises(UserError) as error:
        Config(compilation_config=made(), **given)
    assert error.value.code == "BZ7102"


def test_an_unknown_field_of_the_engine_is_refused():
    with pytest.raises(UserError) as error:
        Config(max_num_seq=4)
    assert (error.value.code, error.value.hints) == ("BZ7101", ("did you mean 'max_num_seqs'?",))
