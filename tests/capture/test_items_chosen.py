"""``rows[i]``, ``memo[k]`` and ``k in memo`` of what changes from call to call: tensors, modules and objects out of lists and dicts, and dicts that remember."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.support import trace


class Held:
    def __init__(self, value: int) -> None:
        self.value, self.tensor, self.items = value, torch.full((3,), float(value)), list[Any]()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(12))
        self.named = nn.ModuleDict({f"a{i}": nn.Linear(3, 3) for i in range(12)})
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(3)) for _ in range(12))


class World:
    """What programs find outside."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rows = [torch.randn(3) for _ in range(12)]
        self.table: dict[Any, Any] = {k: torch.randn(3) for k in range(-3, 9)}
        self.row, self.at = self.rows[3], 0
        self.twice = [self.rows[0]] * 6 + [self.rows[1]] * 6
        self.held = [Held(i) for i in range(12)]
        self.lists = [[i] for i in range(12)]
        self.mixed: dict[Any, Any] = {0: self.row, 1: 2.0, 2: "text", 3: None, 4: [self.row], 5: (1, 2)}
        self.mixed |= {
            6: torch.relu,
            7: Held,
            8: True,
            9: torch.ones(2, 3),
            -1: self.row.double(),
            1 << 40: 7,
        }
        self.memo: dict[Any, Any] = {}
        self.counts: collections.Counter[Any] = collections.Counter()
        self.lists_by: collections.defaultdict[Any, list[Any]] = collections.defaultdict(list)
        self.ordered: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self.numbers: list[Any] = [0] * 12
        self.net = Layers()


def remembered(w: World, key: Any, x: Any) -> Any:
    if key not in w.memo:
        w.memo[key] = x + 1
    return w.memo[key]


def a_row(x: Any, i: Any, w: World) -> Any:
    return x + w.rows[i]


def rows_written_in_place(x: Any, i: Any, w: World) -> Any:
    return w.rows[i].mul_(2).add_(w.rows[i - 1]), w.rows[0] + 0, w.rows[i] is w.rows[i]


def a_row_that_is_known(x: Any, i: Any, w: World) -> Any:
    return w.row + w.rows[i], w.row is w.rows[i], w.twice[i] is w.rows[0], w.twice[i] * x


def a_layer(x: Any, i: Any, w: World) -> Any:
    return w.net.layers[i](x)


def a_layer_by_name(x: Any, i: Any, w: World) -> Any:
    return w.net.named[f"a{i}"](x)


def an_object_that_is_written(x: Any, i: Any, w: World) -> Any:
    held, other = w.held[i], w.held[i - 1]
    held.value += 1
    other.tensor = held.tensor + x
    held.items.append(other.value)
    return held.value, w.held[0].value, other.tensor


def lists_that_grow(x: Any, i: Any, w: World) -> Any:
    w.lists_by[i].append(x.sum())
    w.lists[i].append(1)


def a_memo(x: Any, i: Any, w: World) -> Any:
    return remembered(w, i, x)


def a_memo_by_its_lack(x: Any, i: Any, w: World) -> Any:
    try:
        return w.memo[i]
    except KeyError:
        w.memo[i] = x + 1
        return x


def an_order_by_its_lack(x: Any, i: Any, w: World) -> Any:
    try:
        w.ordered[i] += 1
    except LookupError:
        w.ordered[i] = 1
    return x * 2


def a_memo_by_size(x: Any, i: Any, w: World) -> Any:
    return remembered(w, torch.ones(i % 9 + 2).shape[0], x) if type(i) is int else x


def a_memo_by_text(x: Any, i: Any, w: World) -> Any:
    return remembered(w, str(i), x)


def counted(x: Any, i: Any, w: World) -> Any:
    w.counts[i] += 1
    w.ordered[i] = w.ordered.get(i, 0) + 1
    return x


ALIKE = (
    a_row, a_layer, an_object_that_is_written, lists_that_grow, a_memo, a_memo_by_text, counted, a_memo_by_its_lack, an_order_by_its_lack,
)  # fmt: skip


def of_mixed_kinds(x: Any, i: Any, w: World) -> Any:
    return w.mixed.get(i), i in w.mixed, w.mixed[i]


def of_numbers_alike(x: Any, i: Any, w: World) -> Any:
    return remembered(w, float(i), x), remembered(w, i, x), remembered(w, i == 1, x), len(w.memo)


def many_memos(x: Any, i: Any, w: World) -> Any:
    first, other, again = remembered(w, i, x), remembered(w, i + 1, x * 2), remembered(w, i, x)
    return first is again, other, w.memo.get(i - 1), i + 2 in w.memo, list(w.memo)


def by_two_names(x: Any, i: Any, w: World) -> Any:
    one = other = w.memo
    one[i] = x
    before = other.get(i), other.get(i + 1)
    other[i + 1] = x * 3
    return before, i + 1 in one, one[i], one.setdefault(i + 2, []), one.setdefault(i, 5)


def after_a_write(x: Any, i: Any, w: World) -> Any:
    at, row = w.at, w.rows[w.at]
    w.at = (at + 1) % 5
    w.rows = list(w.rows)
    w.rows[at] = x
    held, w.held = w.held[at], list(reversed(w.held))
    held.value = 77
    return row, w.rows[at], held.value, w.held[at].value


def in_an_error(x: Any, i: Any, w: World) -> Any:
    try:
        row = w.rows[i]
        return row + w.table[i], len(w.table)
    except LookupError as error:
        return str(error), error.args


def an_error_that_is_kept(x: Any, i: Any, w: World) -> Any:
    try:
        return x, w.memo[i]
    except KeyError as error:
        w.held[0].items.append(error.args)
        w.memo[i] = w.at
        try:
            return w.ordered[i + 1]
        except KeyError as other:
            return other.args[0] * 2, repr(other), other.__context__ is error, len(w.memo)


def an_error_that_is_raised(x: Any, i: Any, w: World) -> Any:
    w.row.add_(1)
    w.at += 1
    if w.at % 3:
        w.memo[i] = x.sum() + w.at
    return w.memo[i] * w.memo[w.at - 1]


def over_a_break(x: Any, i: Any, w: World) -> Any:
    row, held = w.rows[i], w.held[i]
    braze.graph_break()
    held.value += 1
    return row + 1, w.rows[i] is row


def taken_out(x: Any, i: Any, w: World) -> Any:
    return remembered(w, i, x), w.memo.pop(i), i in w.memo, w.table.pop(i, None), i in w.table


def by_default(x: Any, i: Any, w: World) -> Any:
    made = w.lists_by[i]
    made.append(x)
    w.lists_by[i + 1].extend([x, i])
    return made is w.lists_by[i], len(w.lists_by), w.counts[i + 50], len(w.counts), w.lists_by.get(i + 2)


PROGRAMS = (
    *ALIKE, rows_written_in_place, a_row_that_is_known, a_layer_by_name, a_memo_by_size, of_mixed_kinds, of_numbers_alike, many_memos, by_two_names,
    after_a_write, in_an_error, over_a_break, taken_out, by_default, an_error_that_is_kept, an_error_that_is_raised,
)  # fmt: skip
KEYS = (
    0, 1, 2, 3, 4, 5, 9, 11, -1, -2, 12, -13, 1 << 40, 1 << 63, -(1 << 70), 3, 4, 3, True, False, 2.0, "1", None, 1, 0,
    9, 9,
)  # fmt: skip


def plain(value: Any, depth: int = 6) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, nn.Module):
        return plain(dict(value.named_parameters()))
    if isinstance(value, dict):
        return type(value), [(plain(k, depth - 1), plain(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [plain(v, depth - 1) for v in value]
    if isinstance(value, Held | World):
        return plain(vars(value), depth - 1)
    return type(value), value


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return plain(program(*args))
    except (LookupError, TypeError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_what_is_chosen_is_that_of_the_call(program: Any) -> None:
    theirs, ours, compiled = World(), World(), braze.compile(program, backend="eager")
    with torch.no_grad():
        for i in KEYS:
            x = torch.arange(3.0)
            assert outcome(compiled, x, i, ours) == outcome(program, x, i, theirs), i
            assert plain(ours) == plain(theirs), i


@pytest.mark.parametrize("program", ALIKE, ids=lambda f: f.__name__)
def test_what_is_alike_has_no_variant_for_each_place(program: Any) -> None:
    compiled, w = braze.compile(program, backend="eager"), World()
    trace.reset_counters()
    for i in range(24):
        compiled(torch.arange(3.0), i % 9 + 3, w)
    assert trace.COUNTERS["captures"] <= 5
    assert trace.COUNTERS["calls_as_they_are"] == 0


def test_adapters_by_name_and_names_out_of_a_list_have_no_variant_for_each() -> None:
    net, names = Layers(), [f"a{i}" for i in range(12)]
    compiled = braze.compile(lambda x, n, i: (net.named[n](x), names[i]), backend="eager")
    trace.reset_counters()
    for i in range(24):
        y, name = compiled(torch.ones(3), names[i % 12], i % 12)
        assert torch.equal(y, net.named[name](torch.ones(3))) and name == names[i % 12]
    assert trace.COUNTERS["captures"] <= 4


def test_gradients_go_to_the_layers_that_were_chosen() -> None:
    theirs, ours = Layers(), Layers()
    ours.load_state_dict(theirs.state_dict())
    compiled = braze.compile(lambda x, i: (ours.layers[i](x) * ours.scales[i]).sum())
    x = torch.randn(5, 3)
    for i in (0, 1, 2, 5, 5, 11, -1, 3):
        (theirs.layers[i](x) * theirs.scales[i]).sum().backward()
        compiled(x, i).backward()
        for wanted, found in zip(theirs.parameters(), ours.parameters(), strict=True):
            assert (wanted.grad is None) == (found.grad is None)
            if wanted.grad is not None and found.grad is not None:
                assert torch.allclose(wanted.grad, found.grad, atol=1e-6)


class Counting:
    """A key that runs code where it is compared."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return self.number == other


def test_a_key_that_compares_by_code_is_compared_as_often_as_in_eager() -> None:
    def program(x: Any, d: Any, k: int) -> Any:
        return d.get(k), k in d, x

    compiled, counts = braze.compile(program, backend="eager"), []
    for call in (program, compiled):
        Counting.compared = 0
        d = {Counting(k): k for k in (3, 4, 5)}
        assert [call(torch.ones(1), d, k)[:2] for k in (2, 3, 4, 5, 6)] == [
            (None, False),
            (3, True),
            (4, True),
            (5, True),
            (None, False),
        ]
        counts.append(Counting.compared)
    assert counts[0] == counts[1]


# -- places of a list that are written


def written(values: Any, i: Any, value: Any) -> None:
    values[i] = value


def a_ring(x: Any, i: Any, w: World) -> Any:
    next_one, before = w.rows[(i + 1) % 12], w.rows[i % 12]
    w.rows[i % 12] = x
    return before + next_one


def counts_in_a_list(x: Any, i: Any, w: World) -> Any:
    w.numbers[i] += 1
    w.numbers[i] += 2
    return x


def read_again(x: Any, i: Any, w: World) -> Any:
    written(w.rows, i, x)
    return w.rows[i] is x, w.rows[i] + 1, w.rows[0], len(w.rows), list(w.rows)


def places_that_may_be_one(x: Any, i: Any, w: World) -> Any:
    written(w.rows, i % 3, x)
    written(w.rows, 2, x * 2)
    written(w.rows, i % 3, x * 3)
    written(w.rows, -10, x * 4)
    written(w.rows, i - 1, x * 5)


def swapped(x: Any, i: Any, w: World) -> Any:
    w.rows[i], w.rows[i - 1] = w.rows[i - 1], w.rows[i]
    return w.rows[i]


def before_others_are_added(x: Any, i: Any, w: World) -> Any:
    written(w.numbers, i, x * 2)
    w.numbers.append(5)
    w.numbers.extend([1, 2])
    return len(w.numbers), w.numbers[i], w.numbers[-1]


def behind_others_that_were_added(x: Any, i: Any, w: World) -> Any:
    w.numbers.append(5)
    written(w.numbers, i, x * 2)
    return w.numbers[-1], w.numbers[i]


def by_two_names_of_a_list(x: Any, i: Any, w: World) -> Any:
    one = other = w.rows
    one[i] = x
    before = other[i]
    other[i] = x + 5
    return before, one[i], one is other, other[-1]


def around_breaks(x: Any, i: Any, w: World) -> Any:
    written(w.rows, i, x)
    braze.graph_break()
    found = w.rows[i]
    written(w.rows, i - 1, x * 2)
    braze.graph_break()
    return found, w.rows[i - 1] + 1


def out_of_range(x: Any, i: Any, w: World) -> Any:
    try:
        w.rows[i] = x
        w.rows[i + 3] = x + 1
    except IndexError as error:
        return str(error)
    return sum(w.numbers)


WRITING = (
    a_ring, counts_in_a_list, read_again, places_that_may_be_one, swapped, before_others_are_added, behind_others_that_were_added, by_two_names_of_a_list,
    around_breaks, out_of_range,
)  # fmt: skip


@pytest.mark.parametrize("program", WRITING, ids=lambda f: f.__name__)
def test_places_of_a_list_are_written_as_in_eager(program: Any) -> None:
    theirs, ours, compiled = World(), World(), braze.compile(program, backend="eager")
    for number, i in enumerate(KEYS):
        x = torch.arange(3.0) + number
        assert outcome(compiled, x, i, ours) == outcome(program, x, i, theirs), i
        assert plain(ours) == plain(theirs), i


@pytest.mark.parametrize("program", [a_ring, counts_in_a_list], ids=lambda f: f.__name__)
def test_a_place_that_is_written_is_no_variant(program: Any) -> None:
    compiled, w = braze.compile(program, backend="eager"), World()
    trace.reset_counters()
    for i in range(24):
        compiled(torch.arange(3.0), i % 9 + 3, w)
    assert trace.COUNTERS["captures"] <= 4
    assert trace.COUNTERS["calls_as_they_are"] == 0


def test_what_ends_with_code_in_a_list_ends_before_what_follows_it() -> None:
    told: list[str] = []

    class Ends:
        def __del__(self) -> None:
            told.append("ended")

    def program(x: Any, values: Any, i: int) -> Any:
        values[i] = x
        told.append("written")
        return x

    compiled = braze.compile(program, backend="eager")
    for i in (4, 5, 6):
        compiled(torch.ones(2), [*range(i), Ends()], i)
    assert told == ["ended", "written"] * 3
