"""A block is a kernel in the making: steps over one set of symbols, with their accesses."""

from __future__ import annotations

import dataclasses
import enum

from braze.loops.ir import Axis, ExternCall, LoopNest, Step, TemplateCall
from braze.loops.rewrite import Substitution
from braze.schedule.facts.dependences import Accesses, accesses
from braze.schedule.facts.domains import Place
from braze.schedule.facts.linear import with_linear_indices


class Shape(enum.Enum):
    POINT = "pointwise"
    ROW = "reduction"
    TEMPLATE = "template"
    EXTERN = "extern"


class Role(enum.Enum):
    """Which points of its block a step runs over."""

    POINT = "point"  # axes (in a reduction block: once per row)
    REDUCE = "reduce"  # axes, reducing over row_axes
    ROW = "row"  # axes x row_axes


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A step of a block, with its number in the program."""

    number: int
    nest: LoopNest
    role: Role


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """Compared by identity; never changed, a fusion makes a new one."""

    shape: Shape
    parts: tuple[Part, ...]
    axes: tuple[Axis, ...]
    row_axes: tuple[Axis, ...]
    accesses: Accesses
    first: int
    device: str
    call: ExternCall | TemplateCall | None = None
    reasons: tuple[str, ...] = ()

    def places(self) -> list[Place]:
        """The block's domain, with roles fixed where there is a reduction."""
        if self.shape is Shape.ROW:
            return [Place(a, False) for a in self.axes] + [Place(a, True) for a in self.row_axes]
        return [Place(a) for a in self.axes]

    def listing(self) -> tuple[Axis, ...]:
        return (*self.axes, *self.row_axes)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A part that may come to be over other symbols in a block with others. Most that are looked at do not: its nest is made last."""

    part: Part
    substitution: Substitution
    role: Role


def block_of(number: int, step: Step) -> Block:
    """The block of one step alone."""
    if isinstance(step, LoopNest):
        step = with_linear_indices(step)
    found = accesses(step)
    if isinstance(step, LoopNest):
        role = Role.REDUCE if step.reductions else Role.POINT
        shape = Shape.ROW if step.reductions else Shape.POINT
        part = Part(number, step, role)
        return Block(shape, (part,), step.axes, step.reduce_axes, found, number, step.device)
    if isinstance(step, TemplateCall):
        nest = LoopNest(step.name, step.axes, (), (), step.epilogue, step.device, step.ops, step.origin)
        part = Part(number, nest, Role.POINT)
        return Block(Shape.TEMPLATE, (part,), step.axes, (), found, number, step.device, step)
    return Block(Shape.EXTERN, (), (), (), found, number, step.device, step)


def points_of(role: Role, axes: tuple[Axis, ...], rows: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes of a step in a block over ``axes`` and ``rows``."""
    return (*axes, *rows) if role is Role.ROW else axes


def moved(
    part: Part, substitution: Substitution, axes: tuple[Axis, ...], rows: tuple[Axis, ...], role: Role
) -> Part:
    """The part over other symbols."""
    nest = substitution.nest(part.nest, points_of(role, axes, rows), rows if role is Role.REDUCE else ())
    return Part(part.number, nest, role)


def moved_accesses(found: Accesses, substitution: Substitution) -> Accesses:
    """Accesses rewritten to other symbols."""
    out = Accesses()
    for source, target in ((found.reads, out.reads), (found.writes, out.writes)):
        for name, indices in source.items():
            target[name] = {None if i is None else substitution.expr(i) for i in indices}
    return out
