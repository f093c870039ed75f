"""A process that runs programs one after another and tells the runner, line by line, what it is at.

``python -m tests.fuzz.worker MACHINE FD`` reads commands from its input: ``run FIRST COUNT`` or
``minimise SEED SECONDS FILE COMMAND...``; what it has to say goes to the descriptor FD as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from tests.fuzz import deaths, failures
from tests.fuzz.machine import MACHINES, Finding, Machine, Row
from tests.fuzz.minimise import made_apart, minimised


def main() -> None:
    name, out = sys.argv[1], os.fdopen(int(sys.argv[2]), "w", buffering=1)
    row = MACHINES[name]
    machine = row.load()
    deaths.tell()
    say(out, ready=True)
    for line in sys.stdin:
        verb, *words = line.split(maxsplit=4)
        if verb == "run":
            for seed in range(int(words[0]), int(words[0]) + int(words[1])):
                os.environ["FUZZ_PROGRAM"] = f"{name} {seed}"
                run_one(machine, seed, out)
            say(out, idle=True)
        else:
            write_smallest(name, row, machine, words, out)


def say(out: TextIO, **facts: Any) -> None:
    out.write(json.dumps(facts) + "\n")


def run_one(machine: Machine, seed: int, out: TextIO) -> None:
    """Make one program and run it; what the machine itself raises is a finding too."""
    say(out, begin=seed)
    tags: tuple[str, ...] = ()
    try:
        program = machine.generate(seed)
        tags = program.tags()
        say(out, made=tags)
        found = machine.check(program)
    except Exception as error:
        if "CUDA error" in str(error):  # the device gives nothing more to this process
            raise
        found = Finding("machine", f"{type(error).__name__}: {error}")
    say(out, end=seed, tags=tags, found=None if found is None else [found.kind, found.text])


def write_smallest(name: str, row: Row, machine: Machine, words: list[str], out: TextIO) -> None:
    """Write the file of a failure, made small; if it passes alone, as it is, with a word about that."""
    seed, seconds, file, found_by = int(words[0]), float(words[1]), Path(words[2]), words[3].strip()
    program = made_apart(machine.generate, seed)
    result = minimised(machine.check, program, seconds, row.seconds)
    if result is None:
        file.write_text(failures.text(name, program, None, found_by))
        say(out, smallest=None)
        return
    smallest, found = result
    file.write_text(failures.text(name, smallest, found, found_by))
    say(out, smallest=[found.kind, found.text], file=str(file))


if __name__ == "__main__":
    main()
