"""What a program depends on changes between two calls: defaults, classes, enums, modules, settings, names that were not there."""

from __future__ import annotations

import collections
import enum
import hashlib
import http
import itertools
import operator
import re
import types

import torch

from tests.end_to_end.conformance import attempt, said, scenario

X = torch.arange(6.0)


@scenario
def defaults_of_functions(c):
    def g(x, k=2, *, m=3):
        return x * k + m

    class A:
        def go(self, x, k=2, shift=(1, 2)):
            return x * k + shift[0]

    a = A()
    f, own, method = c(lambda x: g(x)), c(g), c(lambda x: a.go(x))
    yield f(X), own(X), method(X)
    g.__defaults__ = (5,)
    A.go.__defaults__ = (4, (1, 2))
    yield f(X), own(X), method(X)
    g.__kwdefaults__["m"] = 7
    A.go.__defaults__ = (4, [9])
    yield f(X), own(X), method(X)
    g.__kwdefaults__ = {"m": 8}
    yield f(X), own(X), method(X)


@scenario
def special_methods_replaced(c):
    class B:
        k = 1

        def __add__(self, other):
            return other + self.k

        def __len__(self):
            return 3

        def __call__(self, x):
            return x + self.k

        def __getitem__(self, i):
            return i + 1

        def __eq__(self, other):
            return True

        def __iter__(self):
            return iter((1, 2))

        def __contains__(self, other):
            return True

        def __neg__(self):
            return 4

        __hash__ = None

    class D(B):
        pass

    d = D()
    f = c(lambda x: (d + x, d + 1, x * len(d), d(x), x * d[2], x if d else -x, d == 3, list(d), 5 in d, -d))
    yield f(X)
    for cls in (B, D):
        for name, method in {
            "__add__": lambda s, o: o - 1,
            "__len__": lambda s: 8,
            "__call__": lambda s, x: x - 7,
            "__getitem__": lambda s, i: 50,
            "__eq__": lambda s, o: False,
            "__iter__": lambda s: iter((4,)),
            "__contains__": lambda s, o: False,
            "__neg__": lambda s: 11,
            "__bool__": lambda s: cls is B,
        }.items():
            setattr(cls, name, method)
            yield name, f(X)


@scenario
def methods_that_a_subclass_gets_later(c):
    class P:
        level = 1

        def go(self, x):
            return x + 1

        @staticmethod
        def s(x):
            return x * 2

        @classmethod
        def of(cls, x):
            return x * cls.level

        @property
        def p(self):
            return self.level * 2

    class Q(P):
        pass

    class R(Q):
        def go(self, x):
            return super().go(x) * 10

    q, r = Q(), R()
    f = c(lambda x: (q.go(x), q.s(x), q.of(x), q.p * x, r.go(x), r.s(x), Q.of(x), getattr(q, "more", 0)))
    yield f(X)
    Q.s = staticmethod(lambda x: x * 3)
    yield f(X)
    Q.of = classmethod(lambda cls, x: x * 5)
    yield f(X)
    Q.go = lambda self, x: x - 1
    yield f(X)
    Q.p = 7
    yield f(X)
    R.s = staticmethod(lambda x: x * 8)
    yield f(X)
    P.__getattr__ = lambda self, name: 6
    yield f(X)


@scenario
def modules_of_the_program_get_a_forward(c):
    class Base(torch.nn.Module):
        def forward(self, x):
            return x + 1

    class Own(Base):
        pass

    own = Own()
    f, g = c(lambda x: own(x)), c(own)
    yield f(X), g(X)
    Own.forward = lambda self, x: x * 2
    yield f(X), g(X)


@scenario
def making_of_objects_changes(c):
    class Meta(type):
        def __call__(cls, *args):
            return super().__call__(*args)

    class A(metaclass=Meta):
        def __init__(self, v):
            self.v = v

    class E(Exception):
        k = 1

    def raising(x):
        try:
            raise E("a")
        except E as e:
            return x * e.k + len(e.args)

    f, raising = c(lambda x: x * A(3).v), c(raising)
    yield f(X), raising(X)
    E.__init__ = lambda self, a: Exception.__init__(self, a, a)
    Meta.__call__ = lambda cls, *args: types.SimpleNamespace(v=10)
    yield f(X), raising(X)


@scenario
def classes_of_constants_change(c):
    class M(enum.Enum):
        A = 1
        B = 2

        @property
        def scale(self):
            return TABLE[self.value]

        def times(self, x):
            return x * self.value

    TABLE = {1: 10, 2: 20}
    M.extra = 3
    M.A.note = 2
    f = c(lambda x, m: (x * m.value + M.extra + m.scale, M.A.note, m.times(x), m.name, [k.name for k in M]))
    for change in (
        lambda: None,
        lambda: TABLE.update({1: 11}),
        lambda: setattr(M, "extra", 5),
        lambda: setattr(M.A, "note", 4),
        lambda: setattr(M, "times", lambda self, x: x - self.value),
        lambda: setattr(M, "scale", property(lambda self: 100)),
    ):
        change()
        yield f(X, M.A), f(X, M.B)


@scenario
def what_was_not_there(c):
    space = {"torch": torch}
    exec(
        "def named(x):\n    try:\n        return x * late\n    except NameError:\n        return x\n"
        "def inner(x):\n    return named(x)",
        space,
    )
    home = types.ModuleType("home")

    class Slotted:
        __slots__ = ("k",)

    kept = Slotted()
    named, inner = c(space["named"]), c(space["inner"])
    f = c(lambda x: (x + hasattr(home, "flag"), getattr(home, "other", 2), hasattr(kept, "k")))
    yield named(X), inner(X), f(X)
    space["late"] = 4
    home.flag = True
    kept.k = 1
    yield named(X), inner(X), f(X)
    home.other = 5
    del space["late"], kept.k
    yield named(X), inner(X), f(X)


@scenario
def what_makes_missing_items(c):
    class D(dict):
        def __missing__(self, key):
            return 7

    d, counted = D(a=1), collections.defaultdict(lambda: 3)

    def f(x):
        return x * d["b"] + d["a"] + counted["k"], len(counted)

    f = c(f)
    yield f(X), f(X)
    D.__missing__ = lambda self, key: 8
    del counted["k"]
    counted.default_factory = lambda: 4
    yield f(X), f(X)
    counted.clear()
    counted.default_factory = None
    yield said(lambda: f(X))


@scenario
def names_of_functions(c):
    def g(x):
        return x * len(g.__name__) + len(g.__doc__ or "")

    f = c(g)
    yield f(X)
    g.__name__, g.__doc__ = "longer", "text"
    yield f(X)


@scenario
def settings_of_torch(c):
    def f(x):
        return (
            x + 1,
            torch.get_float32_matmul_precision(),
            torch.is_anomaly_enabled(),
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.mkldnn.enabled,
            torch.backends.cuda.math_sdp_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        )

    f = c(f)
    yield f(X)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        yield f(X)
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autograd.set_detect_anomaly(True):
        yield f(X)
    names = ("enabled", "benchmark", "deterministic")
    before = {name: getattr(torch.backends.cudnn, name) for name in names}
    for name in names:
        with torch.backends.cudnn.flags(**{**before, name: not before[name]}):
            yield f(X)
    with torch.backends.mkldnn.flags(enabled=False):
        yield f(X)
    torch.backends.cuda.enable_math_sdp(False)
    try:
        yield f(X)
    finally:
        torch.backends.cuda.enable_math_sdp(True)
    yield f(X)


@scenario
def default_devices(c):
    def f(x):
        return torch.zeros(2).device, torch.get_default_device(), (x + 1).device, torch.tensor([1.0]).device

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result + 1 if func is torch.add else result

    f, g = c(f), c(lambda x: torch.add(x, 1) + torch.ones(6))
    yield [str(d) for d in f(X)], g(X)
    for device in ("cpu", "meta"):
        torch.set_default_device(device)
        try:
            yield [str(d) for d in f(X)]
        finally:
            torch.set_default_device(None)
        with torch.device(device):
            yield [str(d) for d in f(X)], [str(d) for d in f(X)]
        yield [str(d) for d in f(X)]
    with Watching():
        yield g(X)
    yield g(X)


@scenario
def variables_of_outer_functions_come_and_go(c):
    k = 1

    def f(x):
        try:
            return x * k
        except NameError:
            return "gone"

    def forget():
        nonlocal k
        del k

    f = c(f)
    yield f(X)
    forget()
    yield f(X), f(X)
    k = 4
    yield f(X)


@scenario
def hooks_of_attributes_that_classes_get_and_lose(c):
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    class B(A):
        pass

    b = B()
    f, of_class = c(lambda x: x + b.missing), c(lambda x: x + B.missing)

    def remove(x):
        b.there = 1
        del b.there
        return x, "there" in vars(b)

    removed = c(remove)
    for n in (1, 2):
        A.__getattr__ = lambda self, name, n=n: len(name) * n
        A.__delattr__ = lambda self, name, n=n: object.__delattr__(self, name) if n == 1 else None
        Meta.__getattr__ = lambda cls, name, n=n: n
        yield f(X), of_class(X), removed(X)
    B.__getattr__ = lambda self, name: -1
    yield f(X)
    del A.__getattr__, A.__delattr__, B.__getattr__, Meta.__getattr__
    yield attempt(f, X), attempt(of_class, X), removed(X)
    A.__getattribute__ = lambda self, name: 5
    yield f(X)
    B.__getattribute__ = lambda self, name: 6
    yield f(X)


@scenario
def a_module_that_makes_attributes_when_it_is_asked(c):
    module, asked = types.ModuleType("made"), []

    def __getattr__(name):
        asked.append(name)
        if name == "none":
            raise AttributeError(name)
        return len(name)

    f = c(lambda x, name: (x * 2, getattr(module, name, "default")))
    yield f(X, "there"), asked
    module.__getattr__ = __getattr__
    for name in ("there", "there", "none", "none", "else"):
        yield f(X, name), asked
    module.there = 7
    yield f(X, "there"), asked
    module.__getattr__ = lambda name: -1
    yield f(X, "none"), asked
    del module.__getattr__, module.there
    yield f(X, "there"), asked


@scenario
def what_a_match_found_is_asked_in_each_call(c):
    f = c(lambda x, m: (x + int(m[0]), m.group(), m.start(), m.string, m.span(0)))
    for found in re.finditer("[0-9]", "a1b2c3"):
        yield f(X, found)
    replaced = c(lambda x, k: (x * k, re.sub("[0-9]", lambda m: str(int(m[0]) + k), "a1b2c3")))
    yield replaced(X, 0), replaced(X, 1), replaced(X, 2)


@scenario
def what_getters_of_the_operator_module_get_is_asked_of_each(c):
    f = c(lambda x, get: (x + 1, get([3 + 4j, 2, 1]), sorted([(1, 2), (2, 1)], key=get)))
    for get in (operator.itemgetter(0), operator.itemgetter(1), operator.methodcaller("__len__")):
        yield attempt(f, X, get)
    called = c(lambda x, get: x * get(3 + 4j))
    for get in (operator.attrgetter("real"), operator.attrgetter("imag"), operator.methodcaller("conjugate")):
        yield called(X, get)


class Colour(enum.Flag):
    RED = 1
    GREEN = 2


class Asking(enum.Enum):
    A = 1
    B = 2

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        return cls.A


class Counted(enum.EnumMeta):
    def __call__(cls, value):
        ASKED.append(("call", value))
        return super().__call__(value)


class Calling(enum.Enum, metaclass=Counted):
    A = 1
    B = 2


class Hashing:
    def __init__(self, value):
        self.value = value

    def __hash__(self):
        ASKED.append("hash")
        return hash(self.value)

    def __eq__(self, other):
        return self.value == other


ASKED = []


@scenario
def members_of_an_enumeration_are_those_of_the_number_in_each_call(c):
    def either(make):
        def f(x, n):
            try:
                member = make(n)
            except ValueError as error:
                return x, str(error)
            return x + member.value, member

        return c(f)

    f = either(lambda n: Colour(n & 3))
    for n in (1, 2, 3, 4, 5, 7):
        yield f(X, n)
    refused = either(http.HTTPStatus)
    for n in (200, 404, 7, 8, 201):
        yield refused(X, n)


@scenario
def what_an_enumeration_says_of_missing_values_and_calls_is_asked_in_each_call(c):
    for cls in (Asking, Calling):
        f = c(lambda x, n, cls=cls: (x + cls(n).value, cls(n)))
        for n in (1, 2, 7, 9, 2, 7):
            yield attempt(f, X, n), ASKED[:]
            ASKED.clear()
    key = Hashing(1)
    f = c(lambda x: x + Asking(key).value)
    for n in (1, 2, 7, 2):
        key.value = n
        yield attempt(f, X), [type(each) for each in ASKED]
        ASKED.clear()


@scenario
def entries_that_a_later_dict_does_not_have_are_not_made(c):
    class Counted(dict):
        def __missing__(self, key):
            self[key] = [len(self)]
            return self[key]

    f = c(lambda x, d: x * sum(d["k"]) if "k" in d else x)
    for kind in (collections.defaultdict, Counted):
        for given in ({"k": [1, 2]}, {}, {"k": []}, {"j": [3]}):
            d = kind(list, given) if kind is collections.defaultdict else kind(given)
            yield f(X, d), dict(d)


class ItsOwnDict(dict):
    """Whose items are its attributes, as many a configuration's."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Fields:
    """With a dict of another class for its attributes."""

    def __init__(self, **items):
        self.__dict__ = collections.OrderedDict(items)


@scenario
def attributes_that_are_kept_in_a_dict_of_another_class_are_there(c):
    def tried(x, d):
        try:
            return x * d.k
        except AttributeError:
            return x - 1

    def put(x, d):
        if isinstance(d, dict):
            d["k"] = 4
        return x * getattr(d, "k", 3)

    asked = (
        lambda x, d: x * (d.k if hasattr(d, "k") else 8),
        lambda x, d: x * getattr(d, "k", 8),
        lambda x, d: x * vars(d).get("k", 8),
        lambda x, d: x * len(d.__dict__),
        tried,
        put,
    )
    for function in asked:
        for first, second in itertools.permutations((ItsOwnDict, Fields), 2):
            f = c(function)
            for d in (first(k=5), first(k=6), second(k=7), first(j=1), second(), first(k=5)):
                yield f(X, d)


@scenario
def methods_of_what_is_its_own_dict_are_its_classs_unless_an_item_has_the_name(c):
    f = c(lambda x, d: x + d.get("k", 1))
    for d in (ItsOwnDict(k=5), ItsOwnDict(), ItsOwnDict(k=6, get=lambda name, other: 9), ItsOwnDict(k=7)):
        yield f(X, d)


@scenario
def entries_that_a_later_call_does_not_make_are_not_there_behind_a_break(c):
    def f(x, n):
        made = collections.defaultdict(list)
        if n:
            made["k"].append(n)
        hashlib.md5(b"a")
        return x + n, dict(made), made["k" if n else "j"]

    f = c(f)
    for n in (1, 0, 2):
        yield f(X, n)
