"""The C blocks that are being written, one inside another, and what is known in each."""

from __future__ import annotations

from dataclasses import dataclass, field

from braze.codegen.c.operations import Value
from braze.symbolic.expr import Expr, Symbol


@dataclass(slots=True, eq=False)
class Scope:
    """One C block that is being written: its lines, its symbols' C names, the values known in it."""

    depth: int
    symbols: dict[Symbol, str]
    indent: str
    lines: list[str] = field(default_factory=list)
    values: dict[object, Value] = field(default_factory=dict)
    #: lanes in use where the vector is not full (C text), else ""
    count: str = ""
    #: a mask that guards loads (C name), else ""; loads are not hoisted out of such a scope
    mask: str = ""
    #: depth of the innermost scope around it (or itself) in which a condition holds for what is loaded; 0: none
    guard: int = 0
    #: no C block: its lines stand in the block around it
    flat: bool = False


@dataclass(slots=True, eq=False)
class Scopes:
    """A stack of them, the outermost first."""

    scopes: list[Scope] = field(init=False, default_factory=lambda: [Scope(0, {}, "  ")])
    _count: int = field(init=False, default=0)

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def open(self, head: str, symbols: dict[Symbol, str] | None = None, *, count: str = "") -> Scope:
        """Open a C block; the text before it is written when the block closes, after what it hoists."""
        outer = self.scope
        new = Scope(outer.depth + 1, symbols or {}, outer.indent + "  ")
        new.count = count or outer.count
        new.mask, new.guard = outer.mask, outer.guard
        new.lines.append(head)
        self.scopes.append(new)
        return new

    def aside(self, symbols: dict[Symbol, str]) -> Scope:
        """Open a scope that is no C block: what it declares stays declared, but is forgotten when it closes."""
        scope = self.open("", symbols)
        scope.flat, scope.indent = True, self.scopes[-2].indent
        return scope

    def close(self) -> None:
        """Write the innermost block into the one around it."""
        inner = self.scopes.pop()
        outer = self.scope
        head, *rest = inner.lines
        if inner.flat:
            outer.lines.extend(rest)
            return
        outer.lines.append(outer.indent + head + "{")
        outer.lines.extend(rest)
        outer.lines.append(outer.indent + "}")

    def line(self, text: str, depth: int | None = None) -> None:
        """Append a statement to a scope (default: the innermost)."""
        scope = self.scope if depth is None else self.scopes[depth]
        scope.lines.append(scope.indent + text)

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def names(self) -> dict[Symbol, str]:
        """C names of all symbols in sight."""
        out: dict[Symbol, str] = {}
        for scope in self.scopes:
            out.update(scope.symbols)
        return out

    def symbol_depth(self, e: Expr) -> int:
        """The depth of the innermost scope that binds a symbol of ``e``."""
        depth = 0
        for s in e.symbols():
            for scope in reversed(self.scopes):
                if s in scope.symbols:
                    depth = max(depth, scope.depth)
                    break
        return depth

    def known(self, key: object) -> Value | None:
        for scope in reversed(self.scopes):
            found = scope.values.get(key)
            if found is not None:
                return found
        return None
