"""Numbers that change from call to call in tuples, in keys of tensors and in tensors made of them: two captures serve them all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.support import trace
from tests.helpers import logged, tensors

X = torch.arange(3 * 60 * 4.0).reshape(3, 60, 4)
ROWS, MASK = torch.tensor([0, 2]), torch.tensor([True, False, True])


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call gives: a result, and what its first argument holds then, or an error."""
    try:
        result = fn(*args)
    except (RuntimeError, IndexError, OverflowError, ValueError, TypeError) as error:
        return type(error), str(error).split("\n", 1)[0]
    return repr(result), getattr(result, "dtype", None), getattr(result, "shape", None), args[0].tolist()


def captures(fn: Callable[..., Any], values: Any, **options: Any) -> int:
    """How often a function is compiled over values, each of which gives what eager gives, with nothing that runs as captured."""
    compiled = braze.compile(fn, **options)
    with logged() as said:
        for n in values:
            assert outcome(compiled, X.clone(), n) == outcome(fn, X.clone(), n), n
    assert not [message for message in said if "BZ2" in message or "BZ9" in message]
    return int(compiled.misses)


TUPLES: dict[str, Callable[..., Any]] = {
    "an item": lambda x, t: x * t[1],
    "unpacked": lambda x, t: (lambda a, b: x[0, a] + b)(*t),
    "a shape": lambda x, t: x.new_zeros(t) + 1,
    "a key": lambda x, t: x[0][t[0] % 60, t[1] % 4],
    "nested": lambda x, t: x * (t, (1, t))[1][1][0],
    "returned": lambda x, t: (x[0, 0] * 2, t, t + (1,), t * 2),
    "written": lambda x, t: (x[0, 0] * 2, f"{t[0]} of {t[1]}"),
    "summed": lambda x, t: x * sum(t),
}


@pytest.mark.parametrize("kind", [tuple, torch.Size])
@pytest.mark.parametrize("name", TUPLES)
def test_numbers_in_a_tuple_are_symbols_once_they_change(name: str, kind: Any) -> None:
    assert captures(TUPLES[name], [kind((n, n + 2)) for n in range(2, 14)], backend="eager") == 2


def test_a_tuple_that_decides_has_a_variant_for_each_decision() -> None:
    def f(x: torch.Tensor, t: tuple[int, int]) -> Any:
        return x[0, 0] + 1 if t == (3, 4) else x[0, 0] * {(5, 5): 2}.get(t, 3), x.sum(t).shape if t[
            1
        ] < 3 else 0

    assert captures(f, [(2, 3), (3, 4), (5, 5), (0, 1), (1, 2), (7, 3), (3, 4), (5, 5)], backend="eager") < 8


def test_numbers_among_positional_arguments_are_symbols_too() -> None:
    compiled = braze.compile(lambda x, *numbers: x * numbers[0] + numbers[1], backend="eager")
    for n in range(2, 14):
        assert torch.equal(compiled(X, n, n / 7), X * n + n / 7)
    assert compiled.misses == 2


KEYS: dict[str, Callable[[int], Any]] = {
    "beside slices": lambda n: (slice(1, None), n, slice(1, 3)),
    "beside steps": lambda n: (slice(None, None, 2), n, slice(None, None, 2)),
    "beside a new axis": lambda n: (None, slice(None), n),
    "before a new axis": lambda n: (slice(None), n, None, ...),
    "beside rows": lambda n: (ROWS, n),
    "between rows": lambda n: (ROWS, n, ROWS),
    "beside a mask": lambda n: (MASK, n),
    "beside a list": lambda n: ([0, 2], n),
    "beside a truth value": lambda n: (True, slice(None), n),
    "a list": lambda n: (slice(None), [n, n + 1, 0]),
    "lists": lambda n: ([0, 1], [n, n + 1]),
    "a list of negative ones": lambda n: (slice(None), [-n, n]),
    "a tensor of it": lambda n: (slice(None), torch.tensor(n)),
    "a tensor of several": lambda n: (slice(None), torch.tensor([n, 0])),
    "too many": lambda n: (0, n, 0, 0),
}


def read(x: torch.Tensor, key: Any) -> Any:
    return x[key] * 2


def write(x: torch.Tensor, key: Any) -> Any:
    x[key] = 7
    return x[key].sum()


def add(x: torch.Tensor, key: Any) -> Any:
    x[key] += x[key] * 2
    return x.sum()


@pytest.mark.parametrize("access", [read, write, add])
@pytest.mark.parametrize("name", KEYS)
def test_a_place_that_changes_stands_beside_any_other_part_of_a_key(
    name: str, access: Callable[..., Any]
) -> None:
    """Places beyond the ends are refused in eager's words, and have a variant each."""
    captures(lambda x, n: access(x, KEYS[name](n)), [5, 6, 59, 60, -3, 0, 1, 7], backend="aot_eager")


@pytest.mark.parametrize("access", [read, write, add])
def test_kernels_read_and_write_where_places_that_change_say(access: Callable[..., Any]) -> None:
    """By each key, of memory of its own."""
    keys = {name: key for name, key in KEYS.items() if name != "too many"}

    def program(given: dict[str, torch.Tensor], n: int) -> dict[str, Any]:
        return {name: access(given[name], key(n)) for name, key in keys.items()}

    compiled = braze.compile(program)
    with logged() as said:
        for n in range(2, 14):
            ours, theirs = ({name: X.clone() for name in keys} for _ in range(2))
            found, wanted = compiled(ours, n), program(theirs, n)
            for name in keys:
                assert repr(found[name]) == repr(wanted[name]), (name, n)
                assert torch.equal(ours[name], theirs[name]), (name, n)
    assert not [message for message in said if "BZ2" in message or "BZ9" in message]
    assert compiled.misses == 2


TENSORS: dict[str, Callable[..., Any]] = {
    "a number": lambda x, n: torch.tensor(n),
    "a list": lambda x, n: torch.tensor([n, n + 1]),
    "a tuple": lambda x, n: torch.tensor((n, 0.5, 2)),
    "lists in a list": lambda x, n: torch.tensor([[n, 1], [2, n * 2]]),
    "as floats": lambda x, n: torch.tensor([n, 3], dtype=torch.float16),
    "as a double": lambda x, n: torch.tensor(n, dtype=torch.float64, device="cpu"),
    "as short integers": lambda x, n: torch.tensor([n], dtype=torch.int16),
    "as_tensor": lambda x, n: torch.as_tensor([n, 2], dtype=torch.int32),
    "asarray": lambda x, n: torch.asarray(n),
    "like another": lambda x, n: x.new_tensor([n, 0.5]),
    "a quotient": lambda x, n: torch.tensor([n / 3, n]),
    "sizes": lambda x, n: torch.tensor(x[:, : n % 50].shape),
    "written": lambda x, n: torch.tensor([n, 2]).add_(1),
    "read again": lambda x, n: x[0] * torch.tensor(n).item(),
    "a place": lambda x, n: x.index_select(1, torch.tensor([n % 60])),
    "promoted": lambda x, n: x.half()[0, 0] * torch.tensor(n),
    "ragged": lambda x, n: torch.tensor([[n], [1, 2]]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_a_number_that_changes_is_made_by_the_graph(name: str) -> None:
    assert captures(TENSORS[name], range(2, 14)) == 2 or name == "ragged"
    captures(TENSORS[name], [5, 6, -3, 0, 1, 300, 70_000, 2**31 + 1, 2**40, 2**62], backend="aot_eager")


FLOATS = {"a number", "a list", "a tuple", "lists in a list", "as floats", "as a double", "like another"}


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_a_tensor_of_a_float_that_changes_is_made_by_the_graph(name: str) -> None:
    assert captures(TENSORS[name], [k / 7 for k in range(1, 14)]) == 2
    captures(TENSORS[name], [0.5, 0.25, -3.0, 1e5, 0.0, 1e39, 1e300, float("inf"), float("nan")])


CONSTANTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a place": lambda x: x[:, torch.tensor(5)],
    "a truth value": lambda x: x[:, torch.tensor(True)],
    "a bound": lambda x: x[torch.tensor(1) :],
    "a size": lambda x: x.narrow(1, torch.tensor(1), 2),
    "a place that is written": lambda x: x.__setitem__((0, torch.tensor(1)), 3),
    "all or nothing": lambda x: x.__setitem__(torch.tensor(False), 3),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_tensor_that_the_function_makes_may_be_a_place(name: str) -> None:
    """PyTorch's fakes read the number out while the function was captured, and no stage after that could: the graph ran as captured."""
    assert captures(lambda x, n: (CONSTANTS[name](x), x + n)[1], [1]) == 1


def test_a_write_at_a_mask_that_says_no_counts_as_one() -> None:
    """PyTorch writes nothing at ``x[False]``, and counts no write; at a tensor that holds False it does: a backward of what was saved before is refused."""

    def program(x, n):
        x[torch.tensor(n > 100)] = 3
        y = x.exp()
        y[torch.tensor(False)] = 3
        return y.sum()

    for call in (program, braze.compile(program)):
        x = torch.ones(3)
        call(x, 5)
        assert x._version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(torch.ones(3, requires_grad=True) * 1, 5).backward()


# -- lists from outside that are others at each call


def with_what_is_added(tokens: list[Any]) -> Any:
    tokens.append(len(tokens) + 7)
    return torch.tensor(tokens), torch.as_tensor(tokens, dtype=torch.float16)


def by_a_loop(tokens: list[Any]) -> Any:
    total = torch.tensor(tokens) + 1
    for token in tokens:
        total = total + token
    return total


def beside_other_words(tokens: list[Any]) -> Any:
    x = torch.ones(2, dtype=torch.int32)
    return torch.tensor([tokens], dtype=x.dtype, device=x.device), torch.as_tensor(
        [tokens], dtype=torch.float16
    )


def in_the_midst(tokens: list[Any]) -> Any:
    named = torch.tensor(kept := [tokens])
    return (
        named,
        torch.tensor([[tokens]]),
        torch.tensor([tokens] * 2),
        torch.tensor([tokens][0]),
        len(kept[0]),
    )


def of_another_default_type(tokens: list[Any]) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return (
            torch.tensor([token + 0.5 for token in tokens]),
            torch.tensor(tokens),
            torch.tensor(tokens, dtype=torch.float16),
        )
    finally:
        torch.set_default_dtype(before)


#: of a list, and how many captures of 16 calls with lists that grow
OF_LISTS: dict[str, tuple[Callable[[list[Any]], Any], int]] = {
    "alone": (lambda tokens: torch.tensor(tokens) * 2, 2),
    "as a type": (lambda tokens: torch.as_tensor(tokens, dtype=torch.uint8), 2),
    "in a list": (lambda tokens: torch.tensor([tokens], dtype=torch.float16, requires_grad=True), 2),
    "like another": (lambda tokens: torch.ones(2, dtype=torch.int32).new_tensor([tokens]), 2),
    "twice": (lambda tokens: (torch.tensor(tokens).fill_(3), torch.tensor(tokens), len(tokens)), 3),
    "with what is added": (with_what_is_added, 3),
    "beside other words": (beside_other_words, 2),
    "in the midst": (in_the_midst, 16),
    "of another default type": (of_another_default_type, 16),
    "by a loop too": (by_a_loop, 16),
    "read out": (lambda tokens: torch.tensor(tokens).sum().item(), 16),
}


def of_a_list(function: Callable[..., Any], values: list[Any]) -> Any:
    """What a function gives of a list and leaves in it, or the error it raises."""
    given = copy.deepcopy(values)
    try:
        found = function(given)
    except Exception as error:
        found = type(error), str(error)
    shown = [(v.dtype, v.requires_grad, v.tolist()) for v in tensors(found)]
    return shown or found, given


@pytest.mark.parametrize("name", OF_LISTS)
def test_a_tensor_of_a_list_that_grows_has_no_variant_for_each_length(name: str) -> None:
    function, most = OF_LISTS[name]
    compiled = braze.compile(function, backend="eager")
    trace.reset_counters()
    for n in range(2, 18):
        values = [7 * i % 50 for i in range(n)]
        assert of_a_list(compiled, values) == of_a_list(function, values)
    assert trace.COUNTERS["captures"] <= most


#: of which PyTorch infers other types or sizes, or makes no tensor
LISTS = [
    [[1, 2], [3], [4, 5, 6], [], [-1], [2.5, 1], [1.5], [True, 2], [True], [2**70], [300, 1], [2**62]],
    [
        [3, 4],
        [[1, 2], [3, 4]],
        [[1, 2]],
        [[1], [2, 3]],
        [[]],
        [(1, 2), [3, 4]],
        ["a"],
        [None, 1],
        [1j],
        [5, 6],
    ],
    [[1, 2, 3], [torch.tensor(3), 1], [4, 5], [np.float32(1), 2], [6, 7, 8], [[[1], [2]]]],
]


@pytest.mark.parametrize(
    "name", [name for name in OF_LISTS if name not in ("by a loop too", "read out", "twice")]
)
def test_a_tensor_of_any_list_and_its_errors_are_eagers(name: str) -> None:
    function, _ = OF_LISTS[name]
    for lists in LISTS:
        compiled = braze.compile(function, backend="eager", options={"recompile_limit": 20})
        for values in lists:
            assert of_a_list(compiled, values) == of_a_list(function, values)


def test_a_list_in_a_list_may_be_written_by_another_name() -> None:
    """The tensor, which is made before the function runs, had what stood there before."""

    def program(rows: list[Any], state: dict[str, Any]) -> Any:
        before = torch.tensor(rows)
        state["row"][0] = 50
        return before, torch.tensor(rows)

    compiled = braze.compile(program, backend="eager", options={"recompile_limit": 20})
    for n in (2, 3, 4, 5, 6):
        for shared in (False, True):
            for function in (program, compiled):
                row = [1, 2]
                rows = [[3, 4] for _ in range(n)] + [row if shared else [1, 2]]
                before, after = function(rows, {"row": row})
                assert before[-1].tolist() == [1, 2] and after.tolist() == rows
    assert rows[-1] == [50, 2]


def test_what_makes_tensors_in_place_of_pytorch_is_not_called_while_tracing(monkeypatch: Any) -> None:
    calls: list[Any] = []
    original = torch.tensor

    def mine(*args: Any, **kwargs: Any) -> Any:
        calls.append("mine")
        return original(*args, **kwargs) + 1

    compiled = braze.compile(lambda tokens: torch.tensor(tokens) * 2, backend="eager")
    for n in range(2, 6):
        compiled(list(range(n)))
    monkeypatch.setattr(torch, "tensor", mine)
    assert compiled([1, 2, 3]).tolist() == [4, 6, 8]
    assert len(calls) == 1


# -- parts of lists


class Parts:
    def __init__(self) -> None:
        self.tokens: list[Any] = [7]
        self.block, self.others = 6, [1, 2]

    @property
    def device(self) -> str:
        braze.graph_break()
        return "cpu"


def last_ones(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens[-6:]) * 2


def a_batch_of_last_ones(x: Any, i: int, w: Any) -> Any:
    found = torch.tensor([w.tokens[-w.block :]], dtype=torch.int32)
    w.tokens.append(i)
    return found


def all_but_the_last(x: Any, i: int, w: Any) -> Any:
    found = torch.tensor(w.tokens[:-1]), torch.as_tensor(w.tokens[1:], dtype=torch.float32)
    w.tokens.append(i)
    return found


def a_copy(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens[:]).sum() + x


def both_parts(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    first = torch.tensor(w.tokens[-4:])
    w.tokens.extend([i + 1, 3])
    return first, torch.tensor(w.tokens[-4:]), torch.tensor(w.tokens[-2:]), torch.tensor(w.tokens)


def with_more_at_once(x: Any, i: Any, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens + [i, 0]), torch.tensor([w.tokens + [x.dim()]], dtype=torch.float32)


def a_copy_by_its_class(x: Any, i: Any, w: Any) -> Any:
    w.tokens.append(i)
    return torch.as_tensor(list(w.tokens)) + 1


PARTS = (
    with_more_at_once,
    a_copy_by_its_class,
    last_ones,
    a_batch_of_last_ones,
    all_but_the_last,
    a_copy,
    both_parts,
)


def the_same_part_twice(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens[-3:]), torch.tensor(w.tokens[-3:]), w.tokens[-3:] is w.tokens[-3:]


def parts_that_are_kept(x: Any, i: int, w: Any) -> Any:
    part = w.tokens[-4:]
    part.append(i)
    w.tokens.append(i)
    return torch.tensor(part), part, w.tokens[0]


def over_a_break_that_an_argument_makes(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens[-4:], device=w.device), len(w.tokens)


def whose_numbers_are_read(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    return torch.tensor(w.tokens[-4:]).tolist(), torch.tensor(w.tokens[-9:]).sum().item()


def of_other_kinds(x: Any, i: int, w: Any) -> Any:
    w.tokens.append([i, i * 0.5, True, 1 << 40][i % 4])
    return torch.tensor(w.tokens[-2:]), torch.tensor(w.tokens[-7:]), torch.tensor(w.tokens[1:3])


def by_odd_bounds(x: Any, i: int, w: Any) -> Any:
    w.tokens.append(i)
    found = [
        torch.tensor(w.tokens[-i:]),
        torch.tensor(w.tokens[5:]),
        torch.tensor(w.tokens[::2]),
        torch.tensor(w.tokens[2:-2]),
    ]
    return [
        *found,
        torch.tensor(w.tokens[True:]),
        torch.tensor(w.tokens[-(1 << 70) : 1 << 70]),
        torch.tensor(w.tokens[-1:-3]),
    ]


def more_of_other_kinds(x: Any, i: Any, w: Any) -> Any:
    more = [i, i * 0.5, True, 1 << 40, [i], x, "text", (1,)][i % 8]
    try:
        return torch.tensor(w.tokens + [more])
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), torch.tensor(list(w.tokens) + [1, i % 3 > 1])


def more_that_is_kept(x: Any, i: Any, w: Any) -> Any:
    more, both = [i], w.tokens + [i]
    first = torch.tensor(w.tokens + more)
    more.append(3)
    both.append(4)
    w.tokens += more
    copied = list(w.tokens)
    copied.append(5)
    return first, torch.tensor(both), torch.tensor(w.tokens + more), torch.tensor(copied), more, w.tokens


def of_two_lists(x: Any, i: Any, w: Any) -> Any:
    w.tokens.append(i)
    found = torch.tensor(w.tokens + w.tokens), torch.tensor([0] + w.tokens), torch.tensor(w.tokens + w.others)
    try:
        return found, torch.tensor(w.tokens + (1,))
    except TypeError as error:
        return found, str(error)


def refused(x: Any, i: int, w: Any) -> Any:
    w.tokens.append("text" if i == 9 else i)
    try:
        return torch.tensor(w.tokens[-4:])
    except (TypeError, ValueError) as error:
        w.tokens.pop()
        return str(error)


@pytest.mark.parametrize(
    "program",
    [*PARTS, the_same_part_twice, parts_that_are_kept, over_a_break_that_an_argument_makes, whose_numbers_are_read, of_other_kinds, by_odd_bounds, refused, more_of_other_kinds, more_that_is_kept, of_two_lists],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_tensors_of_parts_of_lists_are_those_of_the_call(program: Any) -> None:
    compiled, theirs, ours = braze.compile(program, backend="eager"), Parts(), Parts()
    for i in (*range(14), 3, 4):
        if i == 12:
            theirs.tokens, ours.tokens = [], []
        x = torch.tensor(1.0)
        assert str(compiled(x, i, ours)) == str(program(x, i, theirs)), i
        assert theirs.tokens == ours.tokens


@pytest.mark.parametrize("program", PARTS, ids=lambda f: f.__name__)
def test_a_part_of_a_list_that_becomes_a_tensor_has_no_variant_for_each_length(program: Any) -> None:
    compiled, theirs, ours = braze.compile(program, backend="eager"), Parts(), Parts()
    trace.reset_counters()
    for i in range(40):
        x = torch.tensor(1.0)
        assert str(compiled(x, i + 2, ours)) == str(program(x, i + 2, theirs)), i
    assert trace.COUNTERS["captures"] <= 6
    assert trace.COUNTERS["calls_as_they_are"] == 0
