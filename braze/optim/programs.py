"""The arithmetic of one step, as scalar expressions: the generators of C and Triton write it from here.

It is that of PyTorch's loop over single tensors, operation by operation, but done in one pass and, for half precision, in
float. Leaves are registers: of an element the parameter ``p``, its gradient ``g`` and its state ``s0``, ``s1``, ...; of a row ``size`` and
``root`` (see c_kernels.ADVANCE); of the kernel :data:`braze.optim.rules.NUMBERS`, all doubles.
"""

from __future__ import annotations

from braze.loops.build import add, binary, cast, const, div, fma, lt, mul, register, sub, unary, where
from braze.loops.ir import DType, Node, Op
from braze.loops.rewrite import loads
from braze.optim.rules import ADAM, DECOUPLED, L2, Kind

#: numbers of a row
ROW = ("size", "root")


def registers(results: dict[str, Node]) -> set[str]:
    """The names of all leaves of a step."""
    return loads(*results.values())


def update(kind: Kind, mode: int | None = None, new: bool | None = None) -> dict[str, Node]:
    """What a step writes, by register. ``mode``, ``new`` (whether momentum's buffer is): None where that is known at run time."""
    dtype = DType.F64 if kind.dtype == "f64" else DType.F32
    number = {name: register(name, DType.F64) for name in (*kind.numbers, *ROW)}
    decays = {
        each: const(mode == each, DType.BOOL)
        if mode is not None
        else binary(Op.EQ, number["decay"], const(float(each), DType.F64))
        for each in (L2, DECOUPLED)
    }
    p, g, *state = (register(name, dtype) for name in kind.names)
    g = mul(g, cast(number["sign"], dtype))
    if kind.algorithm == ADAM:
        return _adam(number, decays, p, g, state)
    fresh = register("new", DType.BOOL) if new is None else const(new, DType.BOOL)
    return _sgd(kind, number, decays, fresh, p, g, state)


def _adam(
    number: dict[str, Node], decays: dict[int, Node], p: Node, g: Node, state: list[Node]
) -> dict[str, Node]:
    def rounded(x: Node) -> Node:
        return cast(x, p.dtype)

    def rest(x: Node) -> Node:
        return sub(const(1.0, x.dtype), x)

    shrink = rounded(rest(mul(number["lr"], number["weight_decay"])))
    p = where(decays[DECOUPLED], mul(p, shrink), p)
    g = where(decays[L2], fma(p, rounded(number["weight_decay"]), g), g)
    # lerp, as torch does it: from the end that is nearer
    weight = rounded(rest(number["beta1"]))
    near = lt(weight, const(0.5, p.dtype))
    step = where(near, weight, sub(weight, const(1.0, p.dtype)))
    first = fma(step, sub(g, state[0]), where(near, state[0], g))
    second = fma(mul(rounded(rest(number["beta2"])), g), g, mul(state[1], rounded(number["beta2"])))
    written = {"s0": first, "s1": second}
    if len(state) > 2:
        written["s2"] = second = binary(Op.MAXIMUM, state[2], second)
    root = add(div(unary(Op.SQRT, second), rounded(number["root"])), rounded(number["eps"]))
    return {"p": add(p, div(mul(rounded(number["size"]), first), root)), **written}


def _sgd(
    kind: Kind,
    number: dict[str, Node],
    decays: dict[int, Node],
    new: Node,
    p: Node,
    g: Node,
    state: list[Node],
) -> dict[str, Node]:
    def rounded(x: Node) -> Node:
        return cast(x, p.dtype)

    g = where(decays[L2], fma(p, rounded(number["weight_decay"]), g), g)
    written = {}
    if state:
        momentum = rounded(number["momentum"])
        fresh = rounded(sub(const(1.0, DType.F64), number["dampening"]))
        written["s0"] = first = where(new, g, fma(g, fresh, mul(state[0], momentum)))
        g = fma(first, momentum, g) if kind.nesterov else first
    return {"p": fma(g, rounded(mul(number["lr"], const(-1.0, DType.F64))), p), **written}
