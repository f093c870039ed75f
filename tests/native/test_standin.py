"""Without the extension braze works on, says so once, and names what it cannot do."""

import os
import subprocess
import sys
from pathlib import Path

from braze import native
from braze.support.codes import CODES
from tests.native import run_plain

ROOT = str(Path(native.__file__).parents[2])
SCRIPT = """
import sys
if "hidden" in sys.argv:
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "braze.native._native":
                raise ImportError("hidden for the test")
    sys.meta_path.insert(0, Hide())
from braze import native
from braze.support.errors import Unsupported

assert not native.native_available and not native.hook_available()
function = lambda x, y=2: x + y
entry = native.Entry(function, lambda *args: None)
entry.add(native.GuardProgram([(-1, "local", 0)], [(0, "equal", 1)], [0]), lambda inputs, x, y: (inputs, x, y))
assert entry(1) == ((1,), 1, 2) and entry(5) == 7
assert native.run_hooked(function, 1, y=3) == 4 and native.unhooked(function, 1) == 3
assert native.mode() == native.OFF
native.set_frame_callback(None)
native.skip_code(function.__code__)
native.forget_code(function.__code__)
native.uninstall()
try:
    native.call_traced(print, function)
except Unsupported as error:
    assert error.code == "BZ6002" and error.hints
else:
    raise SystemExit("call_traced went through")
assert "torch" not in sys.modules
"""


def warnings_of(*args, **environment):
    """What a process that uses the stand-in prints on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_stand_in_when_the_extension_cannot_be_imported():
    text = warnings_of("hidden", BRAZE_PURE="0")
    assert text.count("BZ6001") == 1
    assert "hidden for the test" in text and "reinstall braze" in text


def test_the_stand_in_on_request():
    assert "BRAZE_PURE is set" in warnings_of(BRAZE_PURE="1")


def test_the_codes_are_documented():
    assert {"BZ6001", "BZ6002"} <= set(CODES)


def test_what_is_run_plainly_needs_neither_pytest_nor_pytorch():
    """Nor does a test of these files take arguments, which pytest alone gives."""
    script = f"""
import importlib, inspect, sys
sys.modules.update(dict.fromkeys(("pytest", "torch", "numpy")))
for name in {run_plain.TORCH_FREE}:
    module = importlib.import_module("tests.native." + name)
    for name, test in vars(module).items():
        if name.startswith("test_"):
            inspect.signature(test).bind()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
