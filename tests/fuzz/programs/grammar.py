"""The grammar: expressions by the kind of value they give, statements over them.

A statement is a row of clauses (``try:``, ``except ...:``), each a line and the statements below it; None below a simple one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fuzz.minimise import shorter
from tests.fuzz.programs.prelude import parameter_names

Statement = tuple[tuple[str, Any], ...]

ERRORS = ["ValueError", "KeyError", "Oops", "ZeroDivisionError", "RuntimeError", "IndexError", "TypeError"]


class Grammar:
    """Draws statements; ``depth`` keeps them from nesting without end."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.depth = 0
        self.names = 0
        self.loops = 0

    def one(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    # -- expressions

    def integer(self, depth: int = 0) -> str:
        simple = [
            str(self.rng.randint(-2, 4)), "n", "m", "G", "CONF['k']", "len(xs)", "box.v", "x.shape[0]", "len(d)", "box.double",
            "x.dim()", "rec.width", "len(box)", "STEP.__closure__[0].cell_contents",
        ]  # fmt: skip
        if depth > 2 or self.rng.random() < 0.5:
            return self.rng.choice(simple)
        a, b = self.integer(depth + 1), self.integer(depth + 1)
        return self.one(
            f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"({a} // {b})", f"({a} % {b})", f"max({a}, {b})",
            f"({a} if {self.truth(depth + 1)} else {b})", f"kw.get({self.key()}, {a})", f"kwf({a}, {self.keyword()}={b})[1]",
            f"sum([{a}, {b}])", f"STEP({a})", "box[-1]", f"xs[{a}]", f"(lambda q={a}: q - 1)()",
            f"int('{self.rng.randint(0, 12)}')", f"divmod({a}, {b})[0]", f"abs({a})", f"sum(i for i in range(min({a}, 60)) if i % 2)",
            "getattr(box, 'extra', 5)", f"d.get({self.key()}, {a})", f"next(iter([{a}]))", f"len(f'{{{self.plain()}}}-{{s}}')",
        )  # fmt: skip

    def plain(self) -> str:
        """One without quotes, which an f-string of 3.11 may hold."""
        return self.one("n", "m", "len(xs)", "box.v", "x.shape[0]", "G", "rec")

    def key(self) -> str:
        return repr(self.one("a", "b", "k", "name"))

    def keyword(self) -> str:
        return self.rng.choice(parameter_names()) if self.rng.random() < 0.7 else self.one("a", "b", "z")

    def truth(self, depth: int = 0) -> str:
        a = self.integer(depth + 1)
        return self.one(
            f"{a} > {self.rng.randint(-1, 3)}", f"n == {a}", "isinstance(box, Sub)", f"{self.key()} in d", "not xs", "flag",
            "x.shape[0] > 2", "box is BOX", "x is y", "type(box) is Box", "s.startswith('a')", "callable(box)", "hasattr(box, 'extra')",
            "x.requires_grad", f"all(i < {a} for i in xs if isinstance(i, int))", "bool((x.sum() > 0).item())", "x.dtype == torch.float32",
        )  # fmt: skip

    def tensor(self, depth: int = 0) -> str:
        if depth > 2 or self.rng.random() < 0.35:
            return self.one("x", "y", "x", "y", "box.t", "torch.ones(3)")
        t, n = self.tensor(depth + 1), self.integer(depth + 1)
        return self.one(
            f"({t} + {n})", f"({t} * y)", f"{t}.sin()", f"torch.stack([{t}, y]).sum(0)", f"box.apply({t}, {n})", f"box({t})",
            f"helper({t}, {n})", f"helper({t}, flag={self.truth(depth + 1)})", f"named({t}, {self.keyword()}={n})",
            f"Box.shift({t}, {n})", f"sum(gen({t}, {n}), {t})", f"[q for q in relay({t}, 2)][-1]", f"deep({t}, {n})",
            f"(lambda q: q - {n})({t})", f"reduce(lambda p, q: p + q, [{t}, y])", f"partial(helper, n={n})({t})", f"{t}.clone()",
            f"torch.where({t} > 0, {t}, y)", f"{{'q': {t}}}['q']", f"Pair({t}, y).left", f"{t}.view(-1)", f"({t} if flag else y)",
            f"max([{t}, y], key=lambda q: {n})", f"{t}.relu_()", f"torch.cat([{t}, y])[:3]", f"{t}.detach()", f"-{t}",
        )  # fmt: skip

    def value(self) -> str:
        return self.one(
            self.integer,
            self.tensor,
            lambda: "s",
            lambda: "None",
            lambda: f"({self.integer()}, {self.tensor()})",
        )()

    # -- statements

    def block(self, most: int = 3) -> tuple[Statement, ...]:
        self.depth += 1
        made = tuple(self.statement() for _ in range(self.rng.randint(1, most)))
        self.depth -= 1
        return made

    def statement(self) -> Statement:
        compound = self.depth < 3 and self.rng.random() < 0.4
        return self.compound() if compound else ((self.simple(), None),)

    def simple(self) -> str:
        t, n, v = self.tensor, self.integer, self.value
        kind = self.rng.choice(
            [self.assign, self.assign, self.write, self.mutate, self.mutate, self.break_, self.leave]
        )
        if kind is self.leave and self.rng.random() < 0.6:
            kind = self.assign
        return kind(t, n, v)

    def assign(self, t: Any, n: Any, v: Any) -> str:
        return self.one(
            lambda: f"x = {t()}", lambda: f"y = {t()}", lambda: f"n = {n()}", lambda: f"n += {n()}", lambda: f"m, n = n, {n()}",
            lambda: f"x, *rest = {t()}, {n()}, {n()}", lambda: f"x = y = {t()}", lambda: f"s = f'{{n}}:{{{self.plain()}!r}}'", lambda: f"n = (w := {n()}) + 1",
            lambda: f"box = {self.one('Box', 'Sub')}({n()}, {t()})", lambda: f"box = {self.one('Box', 'Sub')}.made({n()})",
            lambda: f"rec = Record({n()}).grow({self.keyword()}={n()})", lambda: f"rec = dataclasses.replace(rec, width={n()})",
            lambda: f"xs = [{n()}, {t()}, *xs[:2]]", lambda: f"xs = [q * {n()} for q in ({n()}, {t()})]", lambda: "alias = xs",
            lambda: f"d = {{**d, {self.key()}: {v()}}}", lambda: f"d = dict(d, {self.keyword()}={n()})", lambda: f"n = [*map(lambda q: q + 1, [{n()}])][0]",
            lambda: f"x = [i.sum() for i in [x, y] if {self.truth()}][-1] + x",
        )()  # fmt: skip

    def write(self, t: Any, n: Any, v: Any) -> str:
        return self.one(
            lambda: f"x += {n()}", lambda: f"x.add_({t()})", lambda: f"x[{self.rng.randint(-1, 2)}] = {n()}", lambda: "y.mul_(2)",
            lambda: "x[1:].zero_()", lambda: f"x.view(-1)[0] = {n()}", lambda: "y.copy_(x)", lambda: f"torch.add(x, {n()}, out=y)",
        )()  # fmt: skip

    def mutate(self, t: Any, n: Any, v: Any) -> str:
        return self.one(
            lambda: f"xs.append({v()})", lambda: "xs.pop()", lambda: f"xs[{self.rng.randint(-1, 1)}] = {v()}", lambda: f"xs.insert(0, {n()})",
            lambda: f"alias = xs; alias.extend(({n()},))", lambda: f"d[{self.key()}] = {v()}", lambda: f"d.setdefault({self.key()}, []).append({n()})",
            lambda: f"del d[{self.key()}]", lambda: f"d.update({self.keyword()}={n()})", lambda: f"box.v = {n()}", lambda: f"box.v += {n()}",
            lambda: f"box.double = {n()}", lambda: f"box.items.append({v()})", lambda: f"box.t = {t()}", lambda: f"box += {n()}",
            lambda: f"setattr(box, 'extra', {n()})", lambda: "del box.extra", lambda: f"Box.total += {n()}", lambda: f"G = {n()}", lambda: f"CONF['k'] = {n()}",
            lambda: f"LOG.append({v()})", lambda: f"STEP({n()})", lambda: f"rec.tags.append({v()})", lambda: f"kw.pop({self.key()}, None)",
            lambda: f"args[0].append({v()})", lambda: "xs.sort(key=str)", lambda: "xs.reverse()", lambda: f"box.__dict__['extra'] = {n()}",
            lambda: f"xs.clear() if {self.truth()} else None", lambda: "del x",
        )()  # fmt: skip

    def break_(self, t: Any, n: Any, v: Any) -> str:
        return self.one(
            lambda: f"print({n()}, s)", lambda: "time.time()", lambda: f"n = int({t()}.sum().item())", lambda: "zlib.crc32(b'a')", lambda: f"print(f'{{{self.plain()}}}')",
            lambda: "time.perf_counter()", lambda: f"xs.append(round({t()}.mean().item(), 3))", lambda: f"xs += ({t()}).tolist()[:1]",
        )()  # fmt: skip

    def leave(self, t: Any, n: Any, v: Any) -> str:
        error = self.rng.choice(ERRORS)
        options = [
            lambda: f"if {self.truth()}: return x, {v()}", lambda: f"if {self.truth()}: raise {error}({n()}, s)",
            lambda: f"assert {self.truth()}, ({n()}, 'asserted')",
        ]  # fmt: skip
        if self.depth > 1:
            options += [lambda: f"raise {error}(f'{{n}}')", lambda: f"return {v()}, xs"]
        if self.loops:
            options += [lambda: f"if {self.truth()}: break", lambda: f"if {self.truth()}: continue"]
        return self.rng.choice(options)()

    def compound(self) -> Statement:
        return self.one(
            self.branch, self.loop, self.try_, self.try_, self.with_, self.define, self.generator, self.match_
        )()

    def branch(self) -> Statement:
        return ((f"if {self.truth()}:", self.block()), ("else:", self.block()))

    def loop(self) -> Statement:
        i = self.fresh("i")
        head = self.one(
            f"for {i} in range({self.rng.randint(0, 3)}):", f"for {i} in list(xs)[:3]:", f"for {i}, n in enumerate([n, m]):",
            f"for {i}, m in zip([1, 2], range(3)):", f"for {i} in sorted(d):", f"for {i} in gen(x, 2):", f"for {i} in reversed([x, y]):",
            f"for {i}, box.v in list(enumerate([1, 2])):",
        )  # fmt: skip
        self.loops += 1
        body = self.block()
        self.loops -= 1
        return ((head, body), ("else:", self.block(1))) if self.rng.random() < 0.2 else ((head, body),)

    def try_(self) -> Statement:
        e = self.fresh("e")
        kinds = self.rng.sample(ERRORS, 2)
        handler = (
            f"except ({', '.join(kinds)}) as {e}:" if self.rng.random() < 0.5 else f"except Exception as {e}:"
        )
        again = self.one(
            ("raise", None), (f"raise Oops(n) from {e}", None), (f"raise ValueError(str({e}))", None), (f"xs.append(str({e}))", None),
            (f"{e}.add_note('n')", None), (f"LOG.append(type({e}.__context__).__name__)", None),
        )  # fmt: skip
        caught = (*self.block(2), (again,))
        body = self.block()
        if self.rng.random() < 0.5:
            body = (*body, ((f"raise {self.rng.choice(kinds)}({self.integer()})", None),))
        parts: list[Any] = [("try:", body)]
        if self.rng.random() < 0.8:
            parts.append((handler, caught))
            if self.rng.random() < 0.2:
                parts.append(("else:", self.block(1)))
        if len(parts) == 1 or self.rng.random() < 0.4:
            loops, self.loops = (
                self.loops,
                0,
            )  # a break in finally swallows what was raised: left to Python's own tests
            parts.append(("finally:", self.block(2)))
            self.loops = loops
        return tuple(parts)

    def with_(self) -> Statement:
        head = self.one(
            "with Ctx('a'):", "with Ctx('b', (ValueError, Oops)):", "with managed('m') as s:", "with torch.no_grad():", "with Ctx('a') as c, Ctx('c', Exception):",
            "with contextlib.suppress(KeyError, IndexError):", "with threading.Lock():", "with contextlib.nullcontext(n) as m:",
        )  # fmt: skip
        return ((head, self.block()),)

    def define(self) -> Statement:
        f = self.fresh("f")
        loops, self.loops = self.loops, 0
        body = self.block(2)
        self.loops = loops
        outer = self.one((), ("nonlocal n",), ("nonlocal n, x",), ("nonlocal xs",))
        lines = tuple(((line, None),) for line in outer)
        names = [
            name
            for name in ("x", "y", "n", "m", "xs", "d", "s", "box", "rec")
            if not any(name in line.replace(",", "").split() for line in outer)
        ]
        taken = ", ".join(f"{name}={name}" for name in names)
        define = ((f"def {f}({taken}, *args, **kw):", (*lines, *body, ((f"return {self.value()}", None),))),)
        call = self.one(f"m = {f}()", f"xs.append({f}({self.keyword()}={self.integer()}))", f"d['a'] = {f}")
        return (("if True:", (define, ((call, None),))),)

    def generator(self) -> Statement:
        g = self.fresh("g")
        uses = [
            f"xs.append(next({g}))", f"x = {g}.send(None)", f"{g}.close()", f"xs.append({g}.throw({self.rng.choice(ERRORS)}(1)))",
            f"xs.extend({g})", f"y = next({g}, y)", f"d['k'] = {g}.gi_frame is None",
        ]  # fmt: skip
        rows = [
            f"{g} = {self.one('gen', 'relay')}({self.tensor()}, {self.integer()})",
            *self.rng.sample(uses, 3),
        ]
        return (("if True:", tuple(((row, None),) for row in rows)),)

    def match_(self) -> Statement:
        cases = [
            ("case [int(), *_]:", self.block(1)),
            ("case {'k': n}:", self.block(1)),
            ("case Box(v=0) | Pair():", self.block(1)),
            ("case _:", self.block(1)),
        ]
        return ((f"match {self.one('xs', 'd', 'box', 'n', 'CONF')}:", tuple((case,) for case in cases)),)


def lines(block: Sequence[Statement], indent: str) -> Iterator[str]:
    """The text of statements."""
    for statement in block:
        for head, below in statement:
            yield indent + head
            if below is not None:
                yield from lines(below, indent + "    ") if below else [indent + "    pass"]


def smaller(block: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """Blocks with statements left out, or replaced by what stands below them."""
    yield from shorter(block)
    for k, statement in enumerate(block):
        before, after = block[:k], block[k + 1 :]
        if statement[0][1] is not None and not statement[0][0].startswith(("match", "def", "for")):
            yield (*before, *statement[0][1], *after)
        if len(statement) > 2 or (len(statement) == 2 and not statement[0][0].startswith("try")):
            yield (*before, statement[:-1], *after)
        for c, (head, below) in enumerate(statement):
            if below is not None:
                for less in smaller(below):
                    yield (*before, (*statement[:c], (head, less), *statement[c + 1 :]), *after)
