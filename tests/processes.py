"""Programs in Python processes of their own, as ``python -c`` runs them.

Each is forked from one process that has imported PyTorch and nothing of braze: to import PyTorch takes two thirds of the time of a
program that compiles a function.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

#: who hears what the programs print
listeners: list[Callable[[str], None]] = []
#: what Python reads before it runs anything
READ_AT_THE_START = ("PYTHONHASHSEED", "PYTHONMALLOC", "LD_PRELOAD", "OMP_NUM_THREADS")
PARENT = """
import json, os, signal, sys, types
import torch

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

for number, file in enumerate((os.devnull, *asked["files"])):
    opened = os.open(file, os.O_RDWR)
    os.dup2(opened, number)
    os.close(opened)
signal.alarm(300)
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv = ["-c", *asked["words"]]
sys.path[1:1] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(asked["program"], "<string>", "exec"), main.__dict__)
"""


@functools.cache
def _parent() -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_end, made)
    return made


def _end(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin
    parent.stdin.close()
    parent.wait()


def run(
    program: str, *words: str, folder: Path | str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a program prints, which gets ``words`` as arguments, and how it ends."""
    assert not environment.keys() & {*READ_AT_THE_START}, "a process that is forked has these by then"
    parent = _parent()
    assert parent.stdin and parent.stdout
    with tempfile.NamedTemporaryFile("w+") as out, tempfile.NamedTemporaryFile("w+") as err:
        asked = {
            "program": program,
            "words": words,
            "files": [out.name, err.name],
            "folder": str(folder or os.getcwd()),
            "environment": {**os.environ, **environment},
        }
        print(json.dumps(asked), file=parent.stdin, flush=True)
        ended = parent.stdout.readline()
        assert ended, "the process that forks others has ended"
        found = subprocess.CompletedProcess(["-c", *words], int(ended), _read(out), _read(err))
    for listener in listeners:
        listener(found.stdout), listener(found.stderr)
    return found


def _read(file: IO[Any]) -> str:
    return Path(file.name).read_text(errors="replace")
