"""``getattr(self, f"layer_{i}")``, ``table[f"{i}.weight"]``, ``cache[i, j]``, ``activations[i]``: what text and tuples of changing numbers and names choose."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.support import trace
from tests.capture.test_items_chosen import plain

COUNT = 14


class Net(nn.Module):
    #: what its class has comes before what a module's tables hold
    of_class_3 = 3.5

    def __init__(self) -> None:
        super().__init__()
        for i in range(COUNT):
            setattr(self, f"layer_{i}", nn.Linear(3, 3))
            self.register_buffer(f"buffer_{i:02d}", torch.randn(3))
            self.register_parameter(f"p{i}", nn.Parameter(torch.randn(3)) if i != 5 else None)
            setattr(self, f"k{i}", i * 1.5)
        self.layer_7 = self.layer_6
        self.p9 = self.p8
        self.blocks = nn.Sequential(*(nn.Linear(3, 3) for _ in range(COUNT)))
        self.named = nn.ModuleDict({f"a{i}": nn.Linear(3, 3) for i in range(COUNT)})
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(3)) for _ in range(COUNT))
        self.shifts = nn.ParameterDict({f"s{i}": nn.Parameter(torch.randn(3)) for i in range(COUNT)})

    @property
    def computed_3(self) -> int:
        return self.training + 3

    def method_4(self) -> int:
        return 4


class Backwards(nn.Sequential):
    """Counts otherwise."""

    def _get_item_by_idx(self, iterator: Any, idx: int) -> Any:
        return super()._get_item_by_idx(reversed(list(iterator)), idx)


class Plain:
    list_9: list[Any]

    def __init__(self) -> None:
        for i in range(COUNT):
            setattr(self, f"t{i}", torch.randn(3))
            setattr(self, f"list_{i}", [i])
            setattr(self, f"held_{i}", SimpleNamespace(value=i))
        self.list_8 = self.list_9
        self.kinds_0, self.kinds_1, self.kinds_2, self.kinds_3 = 1, None, "text", [1]
        self.kinds_4, self.kinds_5, self.kinds_6, self.kinds_7 = torch.sin, Net, True, (1, 2)


class Hooked(Plain):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Asking(Plain):
    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found * 2 if name.startswith("t") else found


class Slotted:
    __slots__ = ("t2", "t3", "t4")

    def __init__(self) -> None:
        self.t2, self.t3 = torch.randn(3), torch.randn(3)


class Loud(dict[Any, Any]):
    """Its items are looked up by code."""

    def __getitem__(self, key: Any) -> Any:
        return dict.get(self, key, 5) or 1


class Lacking(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return str(key)


class Same:
    """A key that is equal to a tuple."""

    def __init__(self, like: Any) -> None:
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        return bool(self.like == other)


FUNCTIONS = [torch.sin, torch.relu, torch.cos]
CLASSES = [nn.ReLU, nn.Tanh, nn.Sigmoid]


class World:
    """What programs find outside."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.plain, self.hooked, self.asking, self.slotted = (
            Net(),
            Plain(),
            Hooked(),
            Asking(),
            Slotted(),
        )
        self.table = {f"l{i}.{name}": torch.randn(3) for i in range(-2, COUNT) for name in ("w", "b")}
        self.pairs: dict[Any, Any] = {(i, j): torch.randn(3) for i in range(-2, COUNT) for j in (0, 1, i)}
        self.pairs |= {(i, "x", None): float(i) for i in range(COUNT)} | {
            ("x", (i, i)): i for i in range(COUNT)
        }
        self.pairs |= {(i, torch.float32, torch.device("cpu")): torch.randn(3) for i in range(COUNT)}
        self.memo: dict[Any, Any] = {}
        self.other: dict[Any, Any] = {}
        self.loud, self.lacking = Loud({(2, 0): 1, "k3": 0}), Lacking({(2, 0): 1, "k3": 0})
        self.same = {Same((3, 0)): 1, (4, 0): 2}
        self.functions, self.classes = FUNCTIONS * 5, CLASSES * 5
        self.by_name = {f"f{i}": function for i, function in enumerate(self.functions)}
        self.names = [f"layer_{i}" for i in range(COUNT)]


# -- programs that have no variant for each value


def a_layer(x: Any, i: Any, w: Any) -> Any:
    return getattr(w.net, f"layer_{i}")(x)


def a_layer_of_several(x: Any, i: Any, w: Any) -> Any:
    return getattr(w.net, "layer_%d" % i)(x) + getattr(w.net, "layer_{}".format(i - 1))(x)  # noqa: UP031, UP032


def a_buffer(x: Any, i: Any, w: Any) -> Any:
    return x * getattr(w.net, f"buffer_{i:02d}") + getattr(w.net, f"p{i}")


def a_number(x: Any, i: Any, w: Any) -> Any:
    return x * getattr(w.net, f"k{i}"), getattr(w.net, f"none{i}", None), hasattr(w.net, f"p{i}")


def an_attribute(x: Any, i: Any, w: Any) -> Any:
    return getattr(w.plain, f"t{i}") * x, getattr(w.plain, f"none{i}", x), hasattr(w.plain, f"none{i}")


def by_a_name(x: Any, i: Any, w: Any) -> Any:
    return getattr(w.net, w.names[i])(x)


def of_lists_and_dicts_of_parameters(x: Any, i: Any, w: Any) -> Any:
    return w.net.scales[i] * x + w.net.shifts[f"s{i}"] + w.net.named[f"a{i}"](x)


def a_key(x: Any, i: Any, w: Any) -> Any:
    return w.table[f"l{i}.w"] * x + w.table.get("l" + str(i) + ".b", x)


def a_key_of_two(x: Any, i: Any, w: Any) -> Any:
    return (
        w.pairs[i, 0] * x + w.pairs.get((i, i), x),
        w.pairs[i, "x", None],
        w.pairs["x", (i, i)],
        (i, 2) in w.pairs,
    )


def a_key_with_a_dtype(x: Any, i: Any, w: Any) -> Any:
    return w.pairs[i, x.dtype, x.device] * x


def a_memo(x: Any, i: Any, w: Any) -> Any:
    for memo, key in ((w.memo, f"k{i}"), (w.other, (i, x.size(0), "y"))):
        if key not in memo:
            memo[key] = x + i
    return w.memo[f"k{i}"], w.other[i, 3, "y"]


def a_memo_by_its_lack(x: Any, i: Any, w: Any) -> Any:
    try:
        return w.memo[i, "memo"] + x
    except KeyError:
        w.memo[i, "memo"] = x * 2
    return x


def a_block(x: Any, i: Any, w: Any) -> Any:
    return w.net.blocks[i](x) + w.net.blocks[-i](x), w.net.blocks[i - 3] is w.net.blocks[i]


def of_its_dict(x: Any, i: Any, w: Any) -> Any:
    own, name = vars(w.plain), f"t{i}"
    return own[name] * x, w.net.__dict__[f"k{i}"], f"none{i}" in own, own.get(name) is getattr(w.plain, name)


ALIKE = (
    of_its_dict, a_block, a_layer, a_layer_of_several, a_buffer, a_number, an_attribute, by_a_name, of_lists_and_dicts_of_parameters, a_key, a_key_of_two,
    a_key_with_a_dtype, a_memo, a_memo_by_its_lack,
)  # fmt: skip

# -- and others


def chosen_by_kind(x: Any, i: Any, w: Any) -> Any:
    function = getattr(w.plain, f"kinds_{i}", None)
    return function if not callable(function) else function.__name__, hasattr(w.plain, f"kinds_{i}")


def functions_and_classes(x: Any, i: Any, w: Any) -> Any:
    return w.functions[i](x), w.classes[i]()(x), w.by_name[f"f{i}"](x), w.functions[i] is w.functions[0]


def what_the_class_has(x: Any, i: Any, w: Any) -> Any:
    names = (f"of_class_{i}", f"computed_{i}", f"t{i}", f"__dict__{i}")
    found = [getattr(w.net, name, None) for name in names]
    return found, [hasattr(w.net, name) for name in names], getattr(w.net, f"method_{i}", int)()


def what_is_missing(x: Any, i: Any, w: Any) -> Any:
    try:
        return getattr(w.net, f"missing_{i}")
    except AttributeError as error:
        return str(error), error.args


def of_odd_classes(x: Any, i: Any, w: Any) -> Any:
    return (
        getattr(w.hooked, f"t{i}"), getattr(w.asking, f"t{i}"), getattr(w.slotted, f"t{i}", None), getattr(torch, f"float{i * 8}", None),
        getattr(Net, f"of_class_{i}", 1), getattr(x, f"si{'ze' if i else 'gn'}")(), getattr(w.hooked, f"other{i}"),
    )  # fmt: skip


def written_first(x: Any, i: Any, w: Any) -> Any:
    w.plain.t3 = x * 5
    w.net.k4 = i
    return (
        getattr(w.plain, f"t{i}"),
        getattr(w.net, f"k{i}"),
        vars(w.plain)[f"t{i}"] is getattr(w.plain, f"t{i}"),
    )


def written_later(x: Any, i: Any, w: Any) -> Any:
    before = getattr(w.plain, f"t{i}"), getattr(w.net, f"buffer_{i:02d}")
    w.plain.t3 = x * 5
    w.net.buffer_03 = x * 6
    getattr(w.net, f"buffer_{i:02d}").add_(1)
    return before, getattr(w.plain, f"t{i}"), getattr(w.net, f"buffer_{i:02d}"), w.net.buffer_04 + 0


def lists_that_may_be_one(x: Any, i: Any, w: Any) -> Any:
    one, other = getattr(w.plain, f"list_{i}"), w.plain.list_4
    one.append(i)
    other.append(x)
    held = getattr(w.plain, f"held_{i}")
    held.value, w.plain.held_3.value = held.value + 1, w.plain.held_4.value * 2
    return one[-1], one is other, len(other), held.value


def written_by_name(x: Any, i: Any, w: Any) -> Any:
    setattr(w.plain, f"t{i}", x * 2)
    setattr(w.net, f"k{i}", i)
    return getattr(w.plain, f"t{i}") + 1, w.plain.t3, w.plain.__delattr__(f"t{i}"), hasattr(w.plain, f"t{i}")


def of_a_dict_that_is_written(x: Any, i: Any, w: Any) -> Any:
    own, before = vars(w.plain), vars(w.plain).get(f"t{i}")
    own["t3"], w.plain.t4 = x * 7, x * 8
    own[f"held_{i}"] = i
    return before, own.get(f"t{i}"), own.get("t4"), w.plain.held_3, own is w.plain.__dict__, len(own)


def of_dicts_of_odd_objects(x: Any, i: Any, w: Any) -> Any:
    found = [vars(held).get(f"t{i}", 1) for held in (w.hooked, w.asking, w.net)]
    one, other = vars(w.plain).get(f"held_{i}"), w.plain.held_4
    if one is not None:
        one.value += 1
    return found, one is other, other.value, vars(w.plain)[f"list_{i}"]


def deleted(x: Any, i: Any, w: Any) -> Any:
    del w.plain.t3
    found = getattr(w.plain, f"t{i}", None), getattr(w.plain, "t3", 1)
    w.plain.t3 = x
    return found


def a_class_that_is_written(x: Any, i: Any, w: Any) -> Any:
    Plain.extra_3 = 5  # type: ignore[attr-defined]
    try:
        return getattr(w.plain, f"extra_{i}", x), hasattr(w.plain, f"extra_{i}")
    finally:
        del Plain.extra_3  # type: ignore[attr-defined]


def keys_that_are_equal(x: Any, i: Any, w: Any) -> Any:
    found = [
        w.pairs.get(key)
        for key in ((i, 0), (i, False), (i, 0.0), (float(i), 0), (bool(i), 1), (i, "0"), (str(i), 0))
    ]
    return found, (i, i) in w.pairs, (True, i) in w.pairs, (i,) in w.pairs, (i, (i,)) in w.pairs


def of_classes_with_code(x: Any, i: Any, w: Any) -> Any:
    return (
        [held[key] for held in (w.loud, w.lacking) for key in ((i, 0), f"k{i}")],
        (i, 0) in w.lacking,
        w.same.get((i, 0)),
    )


def written_and_looked_for(x: Any, i: Any, w: Any) -> Any:
    w.memo[i, 1] = x
    w.memo[(3, 1)] = x * 3
    w.memo[f"{i}"] = 1
    w.memo["3"] = 2
    return (
        w.memo[i, 1],
        w.memo.get((3, i)),
        w.memo[f"{i}"],
        list(w.memo),
        w.memo.pop((i, 1)),
        (3, 1) in w.memo,
    )


def in_errors(x: Any, i: Any, w: Any) -> Any:
    try:
        return w.table[f"l{i}.w"], w.pairs[i, 7]
    except KeyError as error:
        return str(error), error.args, repr(error)


def over_a_break(x: Any, i: Any, w: Any) -> Any:
    key, name = (i, 0), f"l{i}.w"
    braze.graph_break()
    return w.pairs.get(key), w.table.get(name), getattr(w.net, f"layer_{i}", torch.relu)(x)


def of_sizes(x: Any, i: Any, w: Any) -> Any:
    n = torch.ones(abs(i) % 9 + 2).shape[0] if type(i) is int else 3
    return getattr(w.plain, f"t{n}"), w.pairs[n + 1, 0], w.table[f"l{n - 1}.b"], f"t{n}"


OTHERS = (
    chosen_by_kind, functions_and_classes, what_the_class_has, what_is_missing, of_odd_classes, written_first, written_later, lists_that_may_be_one, written_by_name,
    of_a_dict_that_is_written, of_dicts_of_odd_objects, deleted, a_class_that_is_written, keys_that_are_equal, of_classes_with_code, written_and_looked_for, in_errors,
    over_a_break, of_sizes,
)  # fmt: skip
NUMBERS = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    0,
    1,
    13,
    14,
    -1,
    -2,
    1 << 40,
    1 << 63,
    -(1 << 70),
    3,
    True,
    False,
    2.0,
    "1",
    None,
    4,
    3,
    9,
)


def seen(value: Any) -> Any:
    if isinstance(value, World):
        return {name: seen(held) for name, held in vars(value).items()}
    if isinstance(value, nn.Module):
        return plain(
            {**dict(value.state_dict()), **{k: v for k, v in vars(value).items() if not k.startswith("_")}}
        )
    if isinstance(value, Plain):
        return seen(object.__getattribute__(value, "__dict__"))
    if isinstance(value, SimpleNamespace):
        return seen(vars(value))
    if isinstance(value, Slotted):
        return [plain(getattr(value, name, None)) for name in Slotted.__slots__]
    if isinstance(value, dict):
        return type(value), [(k.like if isinstance(k, Same) else k, seen(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [seen(each) for each in value]
    return plain(value)


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return repr(seen(program(*args)))
    except (LookupError, TypeError, RuntimeError, AttributeError, ValueError, OverflowError) as error:
        return type(error), str(error)


def between(w: Any, call: int) -> None:
    """Entries are replaced, deleted, added and moved."""
    torch.manual_seed(call)
    if call == 6:
        w.net.blocks[3], w.net.blocks[5] = nn.Linear(3, 3, bias=False), w.net.blocks[4]
        w.net.layer_3, w.plain.t3 = nn.Linear(3, 3, bias=False), torch.randn(3).double()  # type: ignore[attr-defined]
        w.pairs[3, 0], w.table["l3.w"], w.functions[3] = 5, torch.randn(1, 3), torch.tanh
    if call == 8:
        del w.net.layer_4, w.net.blocks[2], w.plain.t4, w.pairs[4, 0], w.table["l4.b"]
        w.net.__dict__["layer_9"] = torch.relu  # before what the tables hold
    if call == 12:
        w.net.layer_4, w.plain.t4, w.table["l4.b"] = nn.Linear(3, 3), torch.randn(3), torch.randn(3)  # type: ignore[attr-defined]
        w.net.buffer_03, w.plain.none3, w.pairs = torch.randn(3), 3, dict(w.pairs)  # type: ignore[attr-defined]
    if call == 16:
        w.pairs[Same((3, 2))], w.net.k4 = 7, "text"  # type: ignore[assignment]
        w.net.train(not w.net.training)
        w.net.blocks.add_module("last", nn.Tanh())
    if call == 20:
        w.net.blocks = Backwards(*w.net.blocks)


@pytest.mark.parametrize("changing", [False, True], ids=["kept", "changing"])
@pytest.mark.parametrize("program", [*ALIKE, *OTHERS], ids=lambda f: f.__name__)
def test_what_a_name_chooses_is_that_of_the_call(program: Any, changing: bool) -> None:
    theirs, ours, compiled = World(), World(), braze.compile(program, backend="eager")
    for call, i in enumerate(NUMBERS):
        for w in (theirs, ours) if changing else ():
            between(w, call)
        x = torch.arange(3.0)
        with torch.no_grad():
            assert outcome(compiled, x, i, ours) == outcome(program, x, i, theirs), (call, i)
        assert repr(seen(ours)) == repr(seen(theirs)), (call, i)


@pytest.mark.parametrize("program", ALIKE, ids=lambda f: f.__name__)
def test_what_is_alike_has_no_variant_for_each_name(program: Any) -> None:
    theirs, ours, compiled = World(), World(), braze.compile(program, backend="eager")
    for w in (theirs, ours):
        w.net.layer_7, w.net.p9, w.net.p5 = (
            nn.Linear(3, 3),
            nn.Parameter(torch.randn(3)),
            nn.Parameter(torch.randn(3)),
        )
        w.net.load_state_dict(theirs.net.state_dict())
    trace.reset_counters()
    for call in range(40):
        x, i = torch.arange(3.0), call % 9 + 2
        assert outcome(compiled, x, i, ours) == outcome(program, x, i, theirs)
    assert trace.COUNTERS["captures"] <= 5
    assert trace.COUNTERS["calls_as_they_are"] == 0


def test_functions_that_a_number_chooses_have_a_variant_for_each_function_not_for_each_number() -> None:
    compiled, w = braze.compile(lambda x, i: (w.functions[i](x), w.classes[i]()(x)), backend="eager"), World()
    trace.reset_counters()
    for call in range(40):
        i, x = call % 12, torch.arange(3.0) - 1
        found, through = compiled(x, i)
        assert torch.equal(found, w.functions[i](x)) and torch.equal(through, w.classes[i]()(x))
    assert trace.COUNTERS["captures"] <= 5
    w.functions[4] = torch.tanh
    assert torch.equal(compiled(x, 4)[0], torch.tanh(x))


def test_gradients_go_to_the_layers_that_a_name_has_chosen() -> None:
    theirs = Net()
    ours = copy.deepcopy(theirs)

    def loss(net: Net, x: Any, i: int) -> Any:
        out = getattr(net, f"layer_{i}")(x) * net.scales[i] + net.shifts[f"s{i}"]
        return (out + net.named[f"a{i - 1}"](x)).square().sum()

    compiled, x = braze.compile(loss), torch.randn(5, 3)
    trace.reset_counters()
    for i in (2, 3, 4, 6, 7, 8, 6, 10, 11, 12, 3):
        loss(theirs, x, i).backward()
        compiled(ours, x, i).backward()
        for wanted, found in zip(theirs.parameters(), ours.parameters(), strict=True):
            assert (wanted.grad is None) == (found.grad is None)
            if wanted.grad is not None and found.grad is not None:
                assert torch.allclose(wanted.grad, found.grad, atol=1e-5)
    assert trace.COUNTERS["captures"] <= 3


def test_threads_choose_by_names_of_their_own() -> None:
    w, wrong = World(), list[Any]()
    compiled = braze.compile(
        lambda x, i: a_layer(x, i, w) + w.pairs[i, 0] + w.table[f"l{i}.w"], backend="eager"
    )

    def run(first: int) -> None:
        for call in range(40):
            i, x = (first + call) % 5 + 2, torch.full((3,), float(first))
            expected = a_layer(x, i, w) + w.pairs[i, 0] + w.table[f"l{i}.w"]
            if not torch.equal(compiled(x, i), expected):
                wrong.append((first, i))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_class_that_gets_an_attribute_later_has_it_before_the_object() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(6):
                setattr(self, f"layer_{i}", nn.Linear(3, 3))

        def forward(self, x: Any, i: int) -> Any:
            return getattr(self, f"layer_{i}")(x)

    model, x = Own(), torch.randn(3)
    compiled = braze.compile(model, backend="eager")
    for i in (2, 3, 4, 5):
        assert torch.equal(compiled(x, i), model(x, i))
    Own.layer_4 = staticmethod(torch.relu)  # type: ignore[attr-defined]
    for i in (2, 3, 4, 5, 4):
        assert torch.equal(compiled(x, i), torch.relu(x) if i == 4 else model._modules[f"layer_{i}"](x))  # type: ignore[misc]


@pytest.fixture(autouse=True)
def classes_as_they_were() -> Iterator[None]:
    before = dict(vars(Plain))
    yield
    assert dict(vars(Plain)).keys() == before.keys()


@pytest.mark.parametrize(
    "function",
    [getattr, lambda o, name: getattr(o, name, 5), hasattr, lambda o, name: setattr(o, name, 5), delattr],
    ids=["get", "get or else", "has", "set", "delete"],
)
def test_a_name_that_is_no_text_is_refused_as_python_refuses_it(function: Any) -> None:
    def program(x: Any, held: Any, name: Any) -> Any:
        try:
            return x * 2, function(held, name)
        except (TypeError, AttributeError) as error:
            return x, str(error)

    compiled = braze.compile(program, backend="eager")
    for name in (None, 3, 4, 5, b"a", ("a",)):
        x, held = torch.ones(2), SimpleNamespace(a=1)
        assert str(compiled(x, held, name)) == str(program(x, held, name))
