"""The programs of docs/serving.md run, its tests exist, and its table names every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braze import serving
from braze.serving.policy.fields import FIELDS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "serving.md").read_text()


@pytest.mark.usefixtures("simulated")
def test_the_programs_run(capsys):
    names: dict = {"__name__": "serving_page"}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/serving.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "3 tokens replay FULL" in printed
    assert names["y"].shape == (3, 100)
    assert list(map(len, names["tokens"])) == [5, 5]
    assert names["runner"].stats()["steps_full"] > 3


def test_the_tests_of_the_table_exist():
    found = re.findall(r"`([a-z_/]+\.py)(?:::(\w+))?`", "".join(PAGE.split("its test, in")[1:]))
    assert len(found) > 20
    for file, name in found:
        path = ROOT / "tests" / "serving" / file
        if not path.exists():  # a file of the package
            assert (ROOT / "braze" / "serving" / file).exists(), file
            continue
        assert not name or f"def {name}(" in path.read_text(), f"{file}::{name}"


def test_every_field_is_on_the_page():
    for field in FIELDS:
        assert f"`{field.name}`" in PAGE, field.name


#: what ATOM's guide names, and engines import: classes and functions that are there, and what the page says of the others
CLASSES = """
    CompilationLevel CompilationConfig CUDAGraphMode CUDAGraphWrapper CUDAGraphEntry BatchDescriptor ForwardContext Context AttentionMetaData DPMetadata
    SpecDecodeMetadata VllmBackend CompilerManager CompilerInterface InductorAdaptor PiecewiseBackend ConcreteSizeEntry PiecewiseCompileInterpreter
    SplitItem split_graph support_torch_compile direct_register_custom_op set_forward_context get_forward_context reset_forward_context Config ModelRunner
""".split()
ELSEWHERE = """
    CUDAGraphOptions InductorStandaloneAdaptor AlwaysHitShapeEnv TorchCompileWrapperWithCustomDispatcher start_monitoring_torch_compile aiter_lib KVCacheTensor
""".split()
MEMBERS = """
    NO_COMPILATION DYNAMO_AS_IS DYNAMO_ONCE PIECEWISE NONE FULL FULL_DECODE_ONLY FULL_AND_PIECEWISE decode_mode() mixed_mode() separate_routine()
    has_full_cudagraphs() requires_piecewise_compilation() max_cudagraph_mode() no_compile_layers attn_metadata kv_cache_data context dp_metadata
    spec_decode_metadata positions is_prefill batch_size graph_bs is_draft cudagraph_runtime_mode batch_descriptor do_not_compile capture_cudagraph()
    run_model() get_dp_padding() enforce_eager compilation_config
""".split()


@pytest.mark.parametrize("name", [*CLASSES, *ELSEWHERE, *MEMBERS])
def test_every_name_of_the_seed_is_on_the_page(name):
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(re.search(rf"`([^`]*\W)?{re.escape(name)}(?!\w)", row) for row in rows), name


@pytest.mark.parametrize("name", CLASSES)
def test_the_names_that_engines_import_are_in_one_place(name):
    names: dict = {}
    exec(f"from braze.serving import {name}", names)
    assert callable(names[name])


def test_every_public_name_can_be_fetched():
    for name in serving.__all__:
        assert getattr(serving, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Dispacher'"):
        serving.Dispacher
