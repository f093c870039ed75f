"""A tour of braze: the whole compiler again, for three operators, in one file.

Read it from top to bottom. Each section is one package of the real thing, under the same name and with the same
records made small; what the real one does beyond it is said in a sentence. Run it: ``python docs/tour.py``. The
test suite runs it too, so it cannot rot.

The function that we compile has a pointwise part and a reduction, and reads a global:
"""

from __future__ import annotations

import ctypes
import dis
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

scale = 2.0


def user(x, y):
    return (x * y + x * scale).sum()


# -- capture: Python frame -> graph + guards ----------------------------------------------------------
#
# Interpret the frame's bytecode on *stand-ins* for tensors. Everything else on the stack is the real Python
# object. Each value that comes from outside has a source, and reading it leaves a guard. (The real interpreter
# knows every instruction, calls, closures, writes; what it cannot carry ends the graph and resumes after it.)


@dataclass(frozen=True)
class Node:
    """One operator of the captured graph."""

    op: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Guard:
    """``check`` of the thing at ``source`` must give ``expected``."""

    source: tuple[str, str]
    check: str
    expected: Any

    def holds(self, arguments: dict[str, Any], function: FunctionType) -> bool:
        value = (
            arguments[self.source[1]] if self.source[0] == "local" else function.__globals__[self.source[1]]
        )
        seen = (value.dtype, tuple(value.shape), value.is_contiguous()) if self.check == "tensor" else value
        return bool(seen == self.expected)


def capture(function: FunctionType, arguments: dict[str, torch.Tensor]) -> tuple[Node, tuple[Guard, ...]]:
    """Walk the bytecode once; give back the node that is returned, and what must hold for it to be right."""
    stack: list[Any] = []
    guards: dict[Guard, None] = {}
    for step in dis.get_instructions(function):
        match step.opname:
            case "LOAD_FAST" | "LOAD_FAST_BORROW":
                stack.append(_read_tensor(step.argval, arguments, guards))
            case "LOAD_FAST_LOAD_FAST" | "LOAD_FAST_BORROW_LOAD_FAST_BORROW":
                stack += [_read_tensor(name, arguments, guards) for name in step.argval]
            case "LOAD_GLOBAL":
                value = function.__globals__[step.argval]
                guards[Guard(("global", step.argval), "equal", value)] = None
                stack.append(Node("constant", (value,)))
            case "BINARY_OP":
                right, left = stack.pop(), stack.pop()
                stack.append(Node({"+": "add", "*": "mul"}[step.argrepr], (left, right)))
            case "LOAD_METHOD" | "LOAD_ATTR":
                assert step.argval == "sum", "the tour knows one method"
            case "CALL":
                stack.append(Node("sum", (stack.pop(),)))
            case "RETURN_VALUE":
                return stack.pop(), tuple(guards)
            case "RESUME" | "PRECALL" | "CACHE" | "PUSH_NULL":
                pass
            case other:
                raise NotImplementedError(f"graph break at {other}")
    raise AssertionError("a function returns")


def _read_tensor(name: str, arguments: dict[str, torch.Tensor], guards: dict[Guard, None]) -> Node:
    value = arguments[name]
    seen = (value.dtype, tuple(value.shape), value.is_contiguous())
    guards[Guard(("local", name), "tensor", seen)] = None
    return Node("input", (name,))


# -- lower: graph -> loops ----------------------------------------------------------------------------
#
# A pointwise operator is a function from an index to an expression, so a chain of them composes into one: that is
# vertical fusion, for free. A reduction ends the chain. (The real loop IR has several axes, indices in a normal
# form, dtypes; the real scheduler decides which loops share a kernel and where their buffers live.)


@dataclass(frozen=True)
class Loop:
    """``out = sum over i < extent of body``; ``inputs`` are read at i."""

    extent: int
    body: str
    inputs: tuple[str, ...]


def lower(result: Node, extent: int) -> Loop:
    """Compose every operator below the sum into one scalar expression over the index ``i``."""
    assert result.op == "sum"
    inputs: dict[str, None] = {}

    def expression(node: Node) -> str:
        if node.op == "input":
            inputs[node.args[0]] = None
            return f"{node.args[0]}[i]"
        if node.op == "constant":
            return f"{float(node.args[0])!r}f"
        left, right = map(expression, node.args)
        return f"({left} {'+' if node.op == 'add' else '*'} {right})"

    body = expression(result.args[0])
    return Loop(extent, body, tuple(inputs))


# -- codegen: loops -> C ------------------------------------------------------------------------------
#
# Freestanding C, because headers cost more compile time than kernels do. (The real generator writes vectors,
# threads, tails and its own math functions; another one writes Triton from the same loops.)


def generate(loop: Loop) -> str:
    """The text of one kernel. Eight partial sums let the compiler vectorize, and round better than one."""
    parameters = ", ".join(f"const float *{name}" for name in loop.inputs)
    return f"""
void kernel(float *out, {parameters}) {{
  float part[8] = {{0}};
  for (long i0 = 0; i0 < {loop.extent} / 8 * 8; i0 += 8)
    for (long k = 0; k < 8; k++) {{ long i = i0 + k; part[k] += {loop.body}; }}
  float total = 0;
  for (long k = 0; k < 8; k++) total += part[k];
  for (long i = {loop.extent} / 8 * 8; i < {loop.extent}; i++) total += {loop.body};
  *out = total;
}}
"""


# -- runtime: text -> callable ------------------------------------------------------------------------


def build(source: str, loop: Loop, folder: Path) -> Any:
    """Compile and load a kernel. (The real one keeps it on disk under the hash of its text.)"""
    (folder / "kernel.c").write_text(source)
    library = folder / "kernel.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, folder / "kernel.c"], check=True)
    address = ctypes.CDLL(str(library)).kernel
    address.argtypes = [ctypes.c_void_p] * (1 + len(loop.inputs))

    def run(arguments: dict[str, torch.Tensor]) -> torch.Tensor:
        out = torch.empty(())
        address(out.data_ptr(), *(arguments[name].data_ptr() for name in loop.inputs))
        return out

    return run


# -- the entry ----------------------------------------------------------------------------------------
#
# Variants are tried in order; the first whose guards hold serves the call. A miss compiles another. (The real
# entry and its guard walk are C and take a fraction of a microsecond.)


class Compiled:
    """A function with the variants compiled for it so far."""

    def __init__(self, function: FunctionType, folder: Path) -> None:
        self.function = function
        self.folder = folder
        self.variants: list[tuple[tuple[Guard, ...], Any]] = []

    def __call__(self, *values: torch.Tensor) -> torch.Tensor:
        arguments = dict(zip(self.function.__code__.co_varnames, values, strict=False))
        for guards, run in self.variants:
            if all(guard.holds(arguments, self.function) for guard in guards):
                return run(arguments)
        result, guards = capture(self.function, arguments)
        loop = lower(result, values[0].numel())
        folder = self.folder / str(len(self.variants))
        folder.mkdir()
        self.variants.append((guards, build(generate(loop), loop, folder)))
        return self(*values)


def main() -> None:
    """Compile, call, miss a guard, call again."""
    global scale
    with tempfile.TemporaryDirectory() as folder:
        compiled = Compiled(user, Path(folder))
        x, y = torch.randn(1003), torch.randn(1003)
        torch.testing.assert_close(compiled(x, y), user(x, y))
        torch.testing.assert_close(compiled(y, x), user(y, x))
        assert len(compiled.variants) == 1, "the guards held"
        scale = 3.0
        torch.testing.assert_close(compiled(x, y), user(x, y))
        assert len(compiled.variants) == 2, "a global changed, so there is a second variant"
        torch.testing.assert_close(compiled(x[:8], y[:8]), user(x[:8], y[:8]))
        assert len(compiled.variants) == 3, "so did a size"
    print(f"{len(compiled.variants)} variants, right every time")


if __name__ == "__main__":
    main()
