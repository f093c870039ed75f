"""A number that changes from call to call is compiled for twice, not once a value: in text, below zero, bit by bit."""

from __future__ import annotations

import functools
import math
import operator
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.graph.sizes import bits
from braze.support import trace
from tests.helpers import logged

X = torch.arange(3.0)
LOG: list[str] = []

TEXTS: dict[str, Callable[..., Any]] = {
    "f-string": lambda x, n: (x + 1, f"step {n}", f"{n:>4}|{n!r}|{n:x}"),
    "str": lambda x, n: (x + n, str(n) + "!", "a" + repr(n) + ascii(n) + hex(n)),
    "percent": lambda x, n: (x + 1, "%d of %5d" % (n, 9), "%s" % n),  # noqa: UP031
    "format": lambda x, n: (x + 1, "{} {:>3} {{}}".format(n, n), format(n, "+d")),  # noqa: UP032
    "join": lambda x, n: (x + 1, ", ".join(["a", str(n), f"<{n}>"])),
    "of a quotient": lambda x, n: (x + 1, f"{n / 3:.3f}", f"{n // 2}"),
    "in a list": lambda x, n: [x + 1, [f"{n}", {"k": f"{n + 1}"}]],
    "as its class": lambda x, n: (x + 1, isinstance(f"{n}", str), type(f"{n}"), f"{n}".__class__),
}

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "sum": lambda x, n: (x + n, n, -n, abs(n), n * n),
    "division": lambda x, n: (x * (n // 3), n % 3, n // -4, divmod(n, 5), x / n),
    "xor": lambda x, n: (x + (n ^ 1), n ^ 5, 6 ^ n, n ^ -3),
    "and": lambda x, n: (x * (n & 6), n & -4, n & 7, n | 9, n | -2),
    "shifts": lambda x, n: (x + (n << 2), n >> 1, ~n),
}

LOOKED_INTO: dict[str, Callable[..., Any]] = {
    "length": lambda x, n: (x + 1, len(f"{n}")),
    "truth": lambda x, n: (x + 1, 1 if f"{n}" else 2, not str(n)),
    "key": lambda x, n: (x + 1, {f"l{n}": 1}.get("l3"), {"l5", f"l{n}"} >= {"l4"}),
    "equal": lambda x, n: (x + 1, f"{n}" == "4", f"{n}" < "5", f"{n}" in "345", "4" in f"{n}"),
    "method": lambda x, n: (x + 1, f"n{n}".upper(), "n4".startswith(f"n{n}"), f"{n}".isdigit(), str.title(f"n{n}")),
    "part": lambda x, n: (x + 1, f"{n}"[-1], list(f"{n}a"), int(f"{n}"), [*f"{n}"]),
    "through C": lambda x, n: (x + 1, sorted([f"{n}", "4"]), max("4", f"{n}"), "-".join((f"{n}", *"ab"))),
    "odd format": lambda x, n: (x + 1, f"{n:*^9}", "%c" % (n + 70), f"{n:{n + 20}}"),  # noqa: UP031
}  # fmt: skip


def told(f: Callable[..., Any], values: Any, backend: str = "eager") -> int:
    """How often a function is compiled over values, each of which gives what Python gives."""
    compiled = braze.compile(f, backend=backend)
    for n in values:
        ours, theirs = compiled(X, n), f(X, n)
        assert repr(ours) == repr(theirs)
    return int(compiled.misses)


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_number_that_changes_is_written_after_the_graph(name: str) -> None:
    assert told(TEXTS[name], range(2, 14)) == 2
    assert told(TEXTS[name], range(-14, -2)) == 2


@pytest.mark.parametrize("name", LOOKED_INTO)
def test_text_that_is_looked_into_is_the_text_of_this_call(name: str) -> None:
    told(LOOKED_INTO[name], [3, 4, 5, 11, -2, -3, 4])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_numbers_below_zero_are_symbols_too(name: str, backend: str) -> None:
    assert told(ARITHMETIC[name], range(-14, -2), backend) == 2
    assert told(ARITHMETIC[name], [7, 3, -5, 8, -2, -9, 12, 0, 1, -1, 5, -4], backend) <= 7


def test_a_number_below_zero_that_decides_is_guarded() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        return (x * 2 if n < -5 else x + n), n > 3, x[n:], n == -7

    assert told(f, [-3, -2, -9, -7, -3, -8, -100, 4, 9, 2**40, -(2**40), -(2**62), -(2**63)]) < 12


def test_bits_of_numbers_below_zero_decide() -> None:
    """PyTorch's bounds of them were below themselves, which ended in an error of its own."""

    def f(x: torch.Tensor, n: int) -> Any:
        return x + 1, (n & n) < 0, (n & -n) > 0, (n & n) == n, (n & (n - 1)) < 0

    assert told(f, [-7, -3, -9, -2, 5, 6, -(2**40), 2**40, 0, -1, 1]) < 8


@pytest.mark.parametrize("places", [3, 62, 63, 64, 70, 1100])
def test_numbers_are_shifted_by_any_number_of_places(places: int) -> None:
    """PyTorch's algebra shifts by 63 places to infinity, and to floats."""

    def f(x: torch.Tensor, n: int) -> Any:
        left, right = n << places, n >> places
        return x + 1, left > 1 << 70, left == (n + 1) << (places - 1), right, right < 0, left >> places == n

    assert told(f, [2, 3, 65, -5, 7, 1, 0, 2**62, -(2**62), 2**70, -(2**70)]) < 14


@pytest.mark.parametrize(
    "make",
    [
        lambda x, n: torch.tensor(n * n),
        lambda x, n: torch.as_tensor([[n * n, x.shape[0] * n]]),
        lambda x, n: x.new_tensor((n * n, 3), dtype=torch.int64),
    ],
)
def test_a_tensor_is_made_of_all_the_bits_of_a_number(
    make: Callable[[torch.Tensor, int], torch.Tensor],
) -> None:
    """PyTorch reads 32 bits of a symbolic number."""
    compiled = braze.compile(make, backend="aot_eager", dynamic=True)
    for n in (3, 5, 2**31, 2**31 + 1, 7):
        assert compiled(X, n).tolist() == make(X, n).tolist()


def test_text_is_printed_stored_and_kept_over_a_break(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, n: int, log: list[str]) -> Any:
        print(f"n is {n}", n)
        log.append(f"{n}")
        text = str(n) + "!"
        braze.graph_break()
        return x + 1, text

    compiled = braze.compile(f, backend="eager")
    for n in (3, 4, 5, -6, 5):
        log: list[str] = []
        assert compiled(X, n, log)[1] == f"{n}!" and log == [f"{n}"]
    assert capsys.readouterr().out.splitlines() == [f"n is {n} {n}" for n in (3, 4, 5, -6, 5)]


def test_text_of_a_tensor_that_is_looked_into_breaks_the_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, len(f"{x}-"), bool(f"{x}"), f"{x}".upper()

    assert repr(braze.compile(f, backend="eager")(X)) == repr(f(X))


def test_bits_by_arithmetic() -> None:
    class Number(int):
        pass

    rng = random.Random(0)
    for _ in range(20_000):
        n = rng.choice([rng.randint(-70, 70), rng.randint(-(2**63), 2**63 - 1)])
        mask = rng.choice(
            [rng.randint(-70, 70), rng.randint(-(2**40), 2**40), 0, -1, 2**62 - 1, 2**62, -(2**63)]
        )
        for function in (operator.and_, operator.or_, operator.xor):
            found = bits.combined(lambda f, a, b: f(a, b), function, Number(n), mask)
            assert found is None or found == function(n, mask), (n, mask)


QUOTIENTS: dict[str, Callable[[int, int], Any]] = {
    "signs": lambda a, b: ((a % (5 - b)) < 0, (a % (5 - b)) + 1 > 0, max(a % (5 - b), 0)),
    "of a number": lambda a, b: (a + (2 % (8 - b)), min(2 // (8 - b), a)),
    "of a quotient": lambda a, b: ((a // (5 - b)) % (5 - b), (a * (5 - b) + 1) % (5 - b)),
    "divmod": lambda a, b: (divmod(a, 5 - b), (a // (5 - b)) * (5 - b) + a % (5 - b)),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_what_a_number_below_zero_divides_has_pythons_sign(name: str) -> None:
    fn = QUOTIENTS[name]
    compiled = braze.compile(lambda x, a, b: (x + 1, fn(a, b)), backend="eager")
    with logged() as said:
        for a, b in [(2, 2), (3, 3), (4, 4), (5, 9), (6, 10), (7, 12), (9, 9), (3, 7), (12, 11), (30, 2)]:
            assert compiled(X, a, b)[1] == fn(a, b), (a, b)
    assert not [message for message in said if "BZ9" in message]


#: what a truth value may stand beside: another one, a size, a number of Python's
WITH_TRUTHS: dict[str, Callable[..., Any]] = {
    "a constant beside a size": lambda n: (True + n, n - True, n * False, n // True, n % True, True**n, n / True),
    "bit by bit": lambda n: (n & True, n | True, True ^ n, n << True, True >> n),
    "compared": lambda n: (n == True, n < True, True <= n, n != False),  # noqa: E712
    "in C": lambda n: (sum([n, True]), max(True, n), min(n, True), divmod(n, True), operator.add(n, True)),
    "a relation beside a size": lambda n: ((n > 4) + n, n * (n > 4), (n > 4) // n, n << (n > 4), (n > 4) % n),
    "a relation beside a number": lambda n: ((n > 4) == 1, (n > 4) / 2, (n > 4) * 2.5, 2 ** (n > 4), (n > 4) < 1),
    "two relations": lambda n: ((n > 4) < (n > 3), (n > 4) + (n > 3), (n > 4) ^ True, (n > 4) & (n > 3), (n > 4) == (n > 3)),
    "counted": lambda n: (sum(k < n for k in range(6)), [10, 20][n > 4], "ab" * (n > 4), -(n > 4), ~(n > 4)),
    "of math": lambda n: (math.prod([n, True]), math.prod((n > 4, n)), math.prod(iter([n, n > 4])), math.ldexp(1.0, n > 4)),
    "by its methods": lambda n: (True.__add__(n), (3).__mul__(n), (2.5).__add__(n), (n > 4).__add__(True), float(n > 4) * n),
    "of halves": lambda n: (n * 2.5 * True, n * 0.5 + True, n * 0.5 * (n > 4)),
    "a product of nothing": lambda n: (math.prod([n][1:], start=True), math.prod([n], start=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_TRUTHS)
def test_a_truth_value_is_a_number_beside_sizes_that_change(name: str) -> None:
    of = WITH_TRUTHS[name]
    compiled = braze.compile(lambda x: (x * 2, of(x.shape[0])), backend="eager", dynamic=True, fullgraph=True)
    for n in (3, 4, 5, 6):
        assert repr(compiled(torch.ones(n))[1]) == repr(of(n))


def in_place(n: int) -> Any:
    a, b, c = 7, 3, 1.5
    a //= n - 2
    b %= n - 2
    c /= n - 2
    return a, b, c


REFUSED: dict[str, Callable[[int], Any]] = {
    "quotient": lambda n: 7 / (n - 2),
    "whole quotient": lambda n: 7 // (n - 2),
    "rest": lambda n: n % (n - 2),
    "of a float": lambda n: (1.5 / (n - 2), 1.5 % (n - 2.0), 2 // (n - 2.0)),
    "divmod": lambda n: divmod(7, n - 2),
    "of nothing": lambda n: 0 // (n - 2),
    "unread": lambda n: (1 / (n - 2), 0)[1],
    "in place": in_place,
    "called": lambda n: (operator.truediv(3, n - 2), operator.mod(n, n - 2)),
    "power": lambda n: ((n - 2) ** -1, pow(n - 2, -2), 2 ** (n - 2)),
    "power of a difference": lambda n: (n - 2) ** (n - 3),
    "root": lambda n: ((n - 5) ** 0.5, (-8.0) ** (n / 2)),
    "sqrt": lambda n: math.sqrt(n - 2.5),
}


@pytest.mark.parametrize("of_size", [False, True], ids=["number", "size"])
@pytest.mark.parametrize("name", REFUSED)
def test_whether_a_number_may_be_divided_by_is_guarded(name: str, of_size: bool) -> None:
    """A variant for other numbers gave a result where Python raises, and one for those raised for the others."""
    fn = REFUSED[name]

    def f(x: torch.Tensor, n: int) -> Any:
        y = x + 1
        try:
            found = fn(x.shape[0] if of_size else n)
            y = x + 2
        except (ZeroDivisionError, ValueError) as error:
            found = type(error)
        return y, found

    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0, 6], [2, 3, 4], [3, 4, 5, 2, 6], [7, -5, 3, 2]):
        braze.reset()
        compiled = braze.compile(f, backend="eager")
        for n in order:
            x = torch.arange(float(abs(n)))
            assert repr(compiled(x, n)) == repr(f(x, n)), (order, n)


def test_a_number_that_is_divided_by_is_compiled_for_once() -> None:
    assert told(lambda x, n: (x / n, 100 // n, 100 % n, n**-0.5, math.sqrt(n)), range(2, 14)) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize(
    "number",
    [
        lambda d: int(d / 3),
        lambda d: math.trunc(d / 3),
        lambda d: math.floor(d / 3),
        lambda d: math.ceil(d / 3),
    ],
    ids=["int", "trunc", "floor", "ceil"],
)
def test_quotients_below_zero_are_rounded_as_in_python(number, backend: str) -> None:
    def program(x, y, k):
        d = x.shape[0] - y.shape[0]
        return x * number(d), number(d), x * number(k)

    compiled = braze.compile(program, backend=backend, dynamic=True)
    for n, m, k in ((9, 5, 7), (12, 3, 9), (3, 7, -7), (3, 8, -8), (3, 9, -9), (5, 5, 0)):
        given = torch.ones(n), torch.ones(m), k
        torch.testing.assert_close(compiled(*given), program(*given), rtol=0, atol=0)


def test_the_root_of_a_difference_of_sizes_below_zero_is_an_error() -> None:
    """And of another sizes' difference what it is, by one graph for all that have a root."""
    graphs = []
    program = lambda x, y: x * math.sqrt(x.shape[0] - y.shape[0])
    compiled = braze.compile(program, dynamic=True, backend=lambda gm, _: graphs.append(gm) or gm.forward)
    for n, m in ((9, 5), (12, 3), (5, 5), (20, 3)):
        assert torch.equal(compiled(torch.ones(n), torch.ones(m)), program(torch.ones(n), torch.ones(m)))
    assert len(graphs) == 1
    with pytest.raises(ValueError, match="domain"):
        compiled(torch.ones(3), torch.ones(7))


@pytest.mark.parametrize(
    "part",
    [
        lambda t, n: t[n:],
        lambda t, n: t[:n].exp(),
        lambda t, n: t.narrow(0, 0, max(n, 0)),
        lambda t, n: t[n::2],
    ],
    ids=["from", "computed", "narrow", "step"],
)
@pytest.mark.parametrize("dynamic", [True, None])
def test_parts_of_a_constant_are_of_each_calls_length_where_numbers_are_all_that_is_given(
    part, dynamic
) -> None:
    """What the backend asked of such a number is a guard, too, though no tensor brings it in."""
    program = lambda n: part(torch.tensor([1.0, 2.0, 3.0]), n)
    compiled = braze.compile(program, dynamic=dynamic)
    for n in (3, 3, 2, 1, 0, -1, -3, -5, 3, 2):
        torch.testing.assert_close(compiled(n), program(n), rtol=0, atol=0)


# -- where a number that changes may be held


def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        return f(*args)

    return wrapper


def in_a_closure(wrap: Callable[..., Any]) -> Callable[..., Any]:
    n = 0

    @wrap
    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * n

    return f


def in_a_dict(wrap: Callable[..., Any]) -> Callable[..., Any]:
    state = {"step": 0, "rate": 1.0}

    @wrap
    def f(x: Any) -> Any:
        state["step"] += 1
        state["rate"] *= 0.9
        return x * min(0.999, (1 + state["step"]) / (10 + state["step"])) * state["rate"]

    return f


def in_a_class(wrap: Callable[..., Any]) -> Callable[..., Any]:
    class Counted:
        n = 0

        @wrap
        def f(self, x: Any) -> Any:
            type(self).n += 1
            return x * self.n

    return Counted().f


def in_a_module(wrap: Callable[..., Any]) -> Callable[..., Any]:
    config = types.ModuleType("config")
    config.n = 0

    @wrap
    def f(x: Any) -> Any:
        config.n += 1
        return x * config.n

    return f


def behind_a_method(wrap: Callable[..., Any]) -> Callable[..., Any]:
    class Counter:
        n = 0

        def count(self) -> int:
            self.n += 1
            return self.n

    count = Counter().count
    return wrap(lambda x: x * count())


def in_globals_of_another(wrap: Callable[..., Any]) -> Callable[..., Any]:
    names: dict[str, Any] = {"n": 0}
    exec("def count():\n    global n\n    n += 1\n    return n", names)
    count = names["count"]
    return wrap(lambda x: x * count())


@pytest.mark.parametrize("make", [in_a_closure, in_a_dict, in_a_class, in_a_module, behind_a_method])
def test_a_number_that_is_no_argument_changes_under_dynamic_true_too(make: Any) -> None:
    compiled = make(lambda f: braze.compile(f, backend="eager", dynamic=True))
    told = make(lambda f: f)
    trace.reset_counters()
    for _ in range(12):
        assert torch.equal(compiled(X), told(X))
    assert trace.COUNTERS["captures"] <= 3


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, torch.no_grad(), wrapped, lambda f: wrapped(wrapped(f))],
    ids=["plain", "no_grad", "wrapped", "wrapped twice"],
)
@pytest.mark.parametrize(
    "make",
    [in_a_closure, in_a_dict, in_a_class, in_a_module, behind_a_method, in_globals_of_another],
    ids=lambda f: f.__name__,
)
def test_a_counter_has_no_variant_for_each_value_wherever_it_is_held(
    make: Callable[..., Any], wrap: Callable[..., Any]
) -> None:
    theirs, compiled = make(wrap), braze.compile(make(wrap), backend="eager")
    for _ in range(20):
        assert torch.equal(compiled(X), theirs(X))
    assert compiled.misses <= 4
