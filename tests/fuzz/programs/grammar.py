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
            f"sorted([{a}, {b}], key=lambda q: -q)[0]", f"[q for p in ([{a}], [{b}]) for q in p if q > 0 or True][-1]", f"len({{{a}, {b}}})",
            f"{{q: r for q, r in enumerate([{a}, {b}])}}[1]", f"list(itertools.accumulate([{a}, {b}]))[-1]", f"Counted(a={a})['zz']", f"(w := {a}) + w",
            f"dict(zip('ab', [{a}, {b}]))['b']", f"(Color.RED | Color.BLUE if {a} > 0 else Color.GREEN).value", "slot.v", "slot.level",
            f"next(itertools.count({a}))", f"shown({a})", f"len(list(itertools.chain(xs, [{a}])))", f"(lambda *q, **r: len(q) + len(r))(*xs, {a}, **d)",
            f"reduce(operator.add, [{a}, {b}])", f"max((Key({a}), Key({b}))).n", f"[*zip(*[({a}, {b}), ({b}, {a})])][0][1]", f"len(f'{{{self.plain()}!s:>5}}')",
            f"min([{a}, {b}], key=lambda q: (q % 3, -q))", f"bisect.bisect([1, 2, 3], {a})", f"Key({a}).extra['n']", f"len('%s|%s' % ({a}, s))", "spread.calls",
            f"Counter(['a', {a}, 'a'])['a']", f"(lambda: [n for _ in range(2)])()[{self.rng.randint(0, 1)}]", f"heapq.nsmallest(1, [{a}, {b}])[0]",
            f"operator.itemgetter(0)([{a}])", f"sum(1 for q, _ in itertools.groupby([{a}, {a}, {b}]))", f"len(dq) + {a}", f"int('{{:03d}}'.format({a}))",
            f"(0 < {a} < {b}) + 1", f"list(itertools.islice(itertools.cycle([{a}, {b}]), 3))[2]", f"copy.copy([{a}, {b}])[0]", "len(str(x.shape))",
            "getattr(box, 'extra', 5)", f"(zlib.crc32(str([DEEP, int({a})]).encode()) % 9)", f"(zlib.crc32(repr({{'a': [RAW, int({a})]}}).encode()) % 9)",
            f"int([DEEP, {a}] == copy.deepcopy([DEEP, {b}]))", f"[[RAW]].count([bytearray(b'raw')]) + {a}", f"d.get({self.key()}, {a})", f"next(iter([{a}]))", f"len(f'{{{self.plain()}}}-{{s}}')",
            "box.seen", "Box.tally()", "reduce(getattr, 'v.real'.split('.'), box)", "sum(map(getattr, [box, rec], ['v', 'width']))", "len(Held.LIST.value)",
            "len('{0.v}'.format(box))", "operator.attrgetter('width')(rec)", "settings()", "min([box, BOX], key=operator.attrgetter('v')).v", "Shared().k",
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
            f"{a} in slot", "bool(slot)", f"Color.RED in Color({a} & 7)", f"0 < {a} < 4", f"Mode('a') == 'a' and {a} > 1", f"Key({a}) < Key(2)", "dd", "not dq",
            "any(isinstance(q, torch.Tensor) for q in xs)", "x.requires_grad", f"all(i < {a} for i in xs if isinstance(i, int))", "bool((x.sum() > 0).item())", "x.dtype == torch.float32",
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
            f"Mode.A.scaled({t})", f"shown({t})", f"spread({t}, *rest, {n}, by={n}, **kw)", f"Lazy({t}).doubled", f"(x, {t})[{self.truth(depth + 1)}]",
            f"sum([{t}, y])", f"{t}[..., None].squeeze(-1)", f"operator.mul({t}, {n})", f"{t}.new_full((3,), {n})", "[*slot][1]", f"{t}.reshape(*{t}.shape)",
            f"torch.stack([*(q for q in ({t}, y))]).sum(0)", f"reduce(lambda p, q: q(p), [lambda p: p + {n}, torch.sin], {t})", f"max([{t}, y], key=lambda q: {n})", f"{t}.relu_()", f"torch.cat([{t}, y])[:3]", f"{t}.detach()", f"-{t}",
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
            lambda: f"x, (n, *rest) = {t()}, ({n()}, {n()})", lambda: f"slot = Slotted({n()}, {t()})", lambda: f"dq = deque([{n()}, {v()}], maxlen=2)",
            lambda: f"rest = [*rest, *({n()}, {n()})][:3]", lambda: f"s = '{{:>4}}|{{}}'.format({n()}, n)", lambda: "s = f'{x.shape} {n:+d} {x.dtype}'",
            lambda: f"rec = copy.deepcopy(rec).grow({n()})", lambda: "box = copy.copy(box)", lambda: f"s = ','.join(str(q) for q in [{n()}, n])",
            lambda: f"xs = sorted([*(q for q in xs if isinstance(q, int)), {n()}], reverse={self.truth()})", lambda: f"s = s.upper().center(8, '-')[:{n()}]",
            lambda: f"fns = [lambda q, k=k: q + k + n for k in range(3)]; x = fns[{self.rng.randint(-1, 2)}]({t()})", lambda: f"n, m = sorted([m, {n()}])",
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
            lambda: f"slot.v = {n()}", lambda: f"slot.level = {n()}", lambda: f"slot.t = {t()}", lambda: f"dq.append({v()})", lambda: f"dq.rotate({n()})",
            lambda: f"dd[{self.key()}].append({v()})", lambda: f"xs[1:2] = [{v()}, {n()}]", lambda: f"d[{self.key()}] += {n()}", lambda: f"xs[0] += {n()}",
            lambda: f"rest.append({n()})", lambda: f"heapq.heappush(rest, {n()})", lambda: f"d |= {{{self.key()}: {n()}}}", lambda: "slot.w = 3", lambda: "del xs[1:]",
            lambda: f"spread(x, {n()})", lambda: f"box.items[{self.rng.randint(-1, 1)}:] = [{n()}]", lambda: f"dd.pop({self.key()}, None)", lambda: f"dq.extendleft([{n()}])",
            lambda: f"setattr(Key({n()}), 'n', 3)", lambda: f"BOX.items += [{n()}]", lambda: f"box.__class__ = {self.one('Box', 'Sub')}", lambda: f"LOG += [{n()}]",
            lambda: f"spread.calls += {n()}", lambda: f"rec.width *= {n()} % 5", lambda: "xs.sort(key=lambda q: (isinstance(q, torch.Tensor), str(type(q))))",
            lambda: f"args[0].append({v()})", lambda: "xs.sort(key=str)", lambda: "xs.reverse()", lambda: f"box.__dict__['extra'] = {n()}",
            lambda: f"xs.clear() if {self.truth()} else None", lambda: "del x", lambda: f"Held.LIST.value.append({n()})", lambda: f"box.seen = {n()}",
            lambda: f"operator.attrgetter('items')(box).append({v()})", lambda: f"list(map(setattr, [box, rec], ['v', 'width'], [{n()}, {n()}]))", lambda: f"Shared().k = {n()}",
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
            self.branch,
            self.loop,
            self.try_,
            self.try_,
            self.with_,
            self.define,
            self.generator,
            self.match_,
            self.while_,
            self.stacked,
            self.class_,
            self.echoed,
        )()

    def branch(self) -> Statement:
        return ((f"if {self.truth()}:", self.block()), ("else:", self.block()))

    def loop(self) -> Statement:
        i = self.fresh("i")
        head = self.one(
            f"for {i} in range({self.rng.randint(0, 3)}):", f"for {i} in list(xs)[:3]:", f"for {i}, n in enumerate([n, m]):",
            f"for {i}, m in zip([1, 2], range(3)):", f"for {i} in sorted(d):", f"for {i} in gen(x, 2):", f"for {i} in reversed([x, y]):",
            f"for {i}, box.v in list(enumerate([1, 2])):", f"for {i}, (n, m) in enumerate([(1, 2), (n, 3)]):", f"for {i}, q in itertools.product([1, 2], [x, n]):",
            f"for {i} in itertools.chain([x], xs[:1]):", f"for {i}, *rest in [(1, 2, 3), (n, m)]:", f"for {i} in range(3, 0, -1):", f"for {i}, v in list(d.items())[:2]:",
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
            "with contextlib.suppress(KeyError, IndexError):", "with threading.Lock():", "with torch.enable_grad():", "with contextlib.closing(gen(x, 2)) as g0:",
            "with (managed('p') as s, contextlib.suppress(ValueError)):", "with contextlib.redirect_stdout(None):", "with contextlib.nullcontext(n) as m:",
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

    def while_(self) -> Statement:
        """A loop by a number that it counts down, left in odd ways, from inside ``finally`` too."""
        w = self.fresh("w")
        self.loops += 1
        body = self.block(2)
        self.loops -= 1
        leaving = self.one("break", "continue", f"if {self.truth()}: break", "pass")
        tried: Statement = (
            ("try:", (*body, ((leaving, None),))),
            ("finally:", (((f"LOG.append(('{w}', {w}))", None),),)),
        )
        head: Statement = ((f"while ({w} := {w} - 1) > 0:", (tried,)),)
        if self.rng.random() < 0.3:
            head = (*head, ("else:", self.block(1)))
        return (("if True:", (((f"{w} = {self.rng.randint(1, 4)}", None),), head)),)

    def stacked(self) -> Statement:
        """An ExitStack with what it calls at the end."""
        e = self.fresh("e")
        rows = [
            f"s = {e}.enter_context(managed('e'))", f"{e}.callback(xs.append, {self.integer()})", f"{e}.push(lambda *q: LOG.append(q[0] and q[0].__name__))",
            f"{e}.enter_context(Ctx('s', {self.rng.choice(ERRORS)}))", f"{e}.callback(lambda: LOG.append(n))",
        ]  # fmt: skip
        chosen = tuple(((row, None),) for row in self.rng.sample(rows, 2))
        return ((f"with contextlib.ExitStack() as {e}:", (*chosen, *self.block(2))),)

    def class_(self) -> Statement:
        """A class of the function's own, whose methods close over its variables."""
        c = self.fresh("C")
        base = self.one("Box", "Sub", "object", "Exception", "Slotted", "Counted")
        method: Statement = (
            ("def twice(self, q):", (((f"return q * 2 + {self.one('n', 'm', 'self.by')}", None),),)),
        )
        text: Statement = (("def __repr__(self):", (((f"return f'{c}:{{self.by}}'", None),),)),)
        made: Statement = ((f"class {c}({base}):", (((f"by = {self.integer()}", None),), method, text)),)
        use = self.one(
            f"x = {c}({self.integer()}).twice({self.tensor()})", f"s = repr({c}({self.integer()}))", f"xs.append({c}.by)", f"n = {c}.twice(box, {self.integer()})",
            f"LOG.append({c}.__mro__[1].__name__)", f"n = isinstance({c}(1), Box) + {c}.by",
        )  # fmt: skip
        return (("if True:", (made, ((use, None),))),)

    def echoed(self) -> Statement:
        """A generator that is sent to, thrown into, and left."""
        g = self.fresh("g")
        uses = [
            f"x = {g}.send({self.integer()})", f"y = {g}.throw(ValueError('t'))", f"{g}.close()", f"x = next({g})", f"xs.append({g}.throw(KeyError({self.integer()})))",
            f"n = len([q for q, _ in zip({g}, range(2))])", f"del {g}", f"y = {g}.send(y)", f"xs.extend(itertools.islice({g}, 2))",
        ]  # fmt: skip
        rows = [f"{g} = echo({self.tensor()})", f"x = next({g})", *self.rng.sample(uses, 3)]
        return (("if True:", tuple(((row, None),) for row in rows)),)

    def match_(self) -> Statement:
        cases = [
            ("case [int(), *_]:", self.block(1)),
            ("case {'k': n}:", self.block(1)),
            ("case Box(v=0) | Pair():", self.block(1)),
            (
                self.one(
                    "case Record(width=w, tags=[]) if w > 1:",
                    "case (int(a), _) | [_, int(a), *_]:",
                    "case {'a': q, **more}:",
                    "case str() | Key(n=1):",
                ),
                self.block(1),
            ),
            ("case _:", self.block(1)),
        ]
        return (
            (
                f"match {self.one('xs', 'd', 'box', 'n', 'CONF', 'rec', '(n, m)', 's', 'Key(n)')}:",
                tuple((case,) for case in cases),
            ),
        )


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
