"""Compile kernels of several members to sm_90 machine code without a GPU. Run by test_triton_combos.py, in its own process: Triton decides on import whether it
interprets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from braze.codegen.triton import generate
from tests.codegen.machine_code import compile_offline, resources
from tests.codegen.triton_bench import context, planned

#: registers of a program that takes a few numbers a thread, with room
REGISTERS = 40


def triangles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of places in few numbers: those of ``y`` are one program's."""
    return torch.triu(x, 1).select(2, -1), torch.tril(y, 1)


def main() -> int:
    """Nonzero where a kernel does not build, needs the registers of all its members, or reads no whole vectors."""
    with tempfile.TemporaryDirectory() as folder:
        (text,) = generate(planned(triangles, torch.empty(8, 7, 7), torch.empty(3, 17)), context())
        print("pairs of 16 bits:", compile_offline(text, Path(folder))["ptx"].count("16x2"))
        for count in (2, 60):
            tensors = [torch.empty(8 * (n * n + 50)) for n in range(count)]
            for fn in (lambda *xs: [x * 2 for x in xs], lambda *xs: torch._foreach_norm(xs, 2.0)):
                names = ", ".join(f"x{k}" for k in range(count))
                made: dict[str, object] = {"fn": fn}
                exec(f"def of_tensors({names}):\n    return fn({names})", made)
                (text,) = generate(planned(made["of_tensors"], *tensors), context())
                built = compile_offline(text, Path(folder))
                registers, stack = resources(built, Path(folder))
                vectors = "ld.global.v4" in built["ptx"] or "ld.global.v2" in built["ptx"]
                print(
                    f"{text.name}: {count} members, {registers} registers, {stack} bytes of stack, vectors {vectors}"
                )
                if registers > REGISTERS or stack or not vectors:
                    return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
