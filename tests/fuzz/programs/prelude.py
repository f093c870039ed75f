"""What every program has at hand: classes, functions, generators and state of its own."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import braze

PRELUDE = """
import bisect, contextlib, copy, dataclasses, enum, heapq, itertools, math, operator, threading, time, zlib
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cached_property, lru_cache, partial, reduce, singledispatch, wraps

import torch

G = 1
CONF = {"k": 2, "name": "conf"}
LOG = []
RAW = bytearray(b"raw")
DEEP = {"a": [({"b": {"c": [[{"d": {"e": [1, {"f": 2}]}}]]}},)]}
Pair = namedtuple("Pair", "left right")


class Oops(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


@dataclasses.dataclass
class Record:
    width: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def grow(self, by=1, **more):
        self.width += by
        self.tags.extend(sorted(more))
        return self


class Tally:
    def __init__(self):
        self.n = 0

    def __call__(self, *args):
        self.n += 1
        return self.n


class Seen(Tally):
    def __get__(self, obj, owner=None):
        return self if obj is None else self()

    def __set__(self, obj, value):
        self.n = value


class Held(enum.Enum):
    LIST = [1]


class Shared:
    held = {"k": 0}

    def __init__(self):
        self.__dict__ = self.held


class Box:
    scale = 2
    total = 0
    seen = Seen()
    tally = staticmethod(Tally())

    def __init__(self, v, t=None):
        self.v = v
        self.t = t
        self.items = [v]

    def apply(self, x, *args, **kwargs):
        self.items.append(len(args) + len(kwargs))
        return x * self.scale + self.v

    @property
    def double(self):
        return self.v * 2

    @double.setter
    def double(self, value):
        self.v = value // 2

    @classmethod
    def made(cls, v):
        cls.total += 1
        return cls(v)

    @staticmethod
    def shift(x, by=1):
        return x - by

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]

    def __eq__(self, other):
        return isinstance(other, Box) and self.v == other.v

    __hash__ = None

    def __iadd__(self, n):
        self.v += n
        return self

    def __call__(self, x):
        return self.apply(x, self.v)


class Sub(Box):
    def apply(self, x, *args, **kwargs):
        return super().apply(x, *args, extra=1, **kwargs).sin()

    def __getattr__(self, name):
        if name.startswith("miss"):
            return len(name)
        raise AttributeError(name)


class Color(enum.Flag):
    RED = 1
    GREEN = 2
    BLUE = 4


class Mode(str, enum.Enum):
    A = "a"
    B = "b"

    def scaled(self, x):
        return x * (2 if self is Mode.A else 3)


class Bounded:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        if isinstance(value, int) and value > 50:
            raise ValueError(self.name, "too large")
        setattr(obj, self.name, value)


class Slotted:
    __slots__ = ("v", "t", "_level")
    level = Bounded()

    def __init__(self, v, t=None):
        self.v, self.t = v, t

    def __iter__(self):
        yield self.v
        yield self.t

    def __contains__(self, other):
        return other == self.v

    def __lt__(self, other):
        return self.v < other.v

    def __bool__(self):
        return self.v != 0


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    n: int
    name: str = "k"
    extra: dict = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "extra", {**self.extra, "n": self.n})


class Counted(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


class Lazy:
    def __init__(self, x):
        self.x = x

    @cached_property
    def doubled(self):
        LOG.append("doubled")
        return self.x * 2


class Ctx:
    def __init__(self, name, swallow=()):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append("in " + self.name)
        return self

    def __exit__(self, kind, error, traceback):
        LOG.append((self.name, kind and kind.__name__))
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(name):
    LOG.append("open " + name)
    try:
        yield name
    except KeyError:
        LOG.append("key")
        raise Oops(7) from None
    finally:
        LOG.append("close " + name)


def gen(x, n):
    try:
        for i in range(min(n, 60)):
            got = yield x + i
            if got is not None:
                x = x * got
    finally:
        LOG.append(("gen", n))
    return n


def echo(x):
    try:
        while True:
            try:
                got = yield x
                x = x * 2 if got is None else x + got
            except ValueError as error:
                LOG.append(("echo", str(error)))
                x = x - 1
    finally:
        LOG.append("echo ends")


def numbered(fn):
    @wraps(fn)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return fn(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


@numbered
def spread(x, *rest, by=1, **more):
    return x * by + sum(r for r in rest if isinstance(r, int)) + len(more)


@singledispatch
def shown(value):
    return 0


@shown.register
def _(value: int):
    return value + 1


@shown.register(torch.Tensor)
def _(value):
    return value + 1


def relay(x, n):
    r = yield from gen(x, n)
    yield x * r


def kwf(*args, **kwargs):
    return [len(args), *kwargs], sum(v for v in kwargs.values() if isinstance(v, int))


def named(x, by=1, *, self=2, target=3, function=4, **kwargs):
    return x * by + self - target + function + len(kwargs)


def deep(x, n):
    if n <= 0:
        raise Oops(n, "deep")
    return deep(x + 1, n - 1) if n > 1 else x


def counter(start):
    count = start

    def step(by=1):
        nonlocal count
        count += by
        return count

    return step


STEP = counter(0)


def logged(fn):
    def wrapper(*args, **kwargs):
        LOG.append(fn.__name__)
        return fn(*args, **kwargs)

    return wrapper


@logged
def helper(x, n=G, *, flag=False):
    return x.cos() if flag else x + n


def settings():
    return (torch.get_float32_matmul_precision() == "high") + 2 * torch.backends.cuda.flash_sdp_enabled()
"""

#: what changes between two calls, by name
FLIPS = {
    "nothing": "pass",
    "a global": "G += 1",
    "a dictionary": "CONF['k'] = CONF['k'] + 1",
    "an entry is gone": "CONF.pop('name', None)",
    "a class attribute": "Box.scale = Box.scale + 1",
    "a method": "Box.shift = staticmethod(lambda x, by=1: x + by)",
    "a method of a subclass": "Sub.apply = lambda self, x, *args, **kwargs: x - self.v",
    "defaults": "named.__defaults__ = (named.__defaults__[0] + 1,)",
    "keyword defaults": "named.__kwdefaults__ = {**named.__kwdefaults__, 'self': 9}",
    "a cell": "STEP(5)",
    "a function": "helper = lambda x, n=0, *, flag=False: x * 3",
    "a function's code": "deep.__code__ = (lambda x, n: x - n).__code__",
    "an attribute of an instance": "BOX.extra = getattr(BOX, 'extra', 0) + 1",
    "an instance's method": "BOX.apply = lambda x, *args, **kwargs: x + 100",
    "an instance's class": "BOX.__class__ = Sub",
    "a default dtype": "torch.set_default_dtype(torch.float64)",
    "a length": "BOX.items.append(1)",
    "what a descriptor holds": "vars(Box)['seen'].n += 1",
    "a member's value": "Held.LIST.value.append(1)",
    "what lies deep": "DEEP['a'][0][0]['b']['c'][0][0]['d']['e'][0] += 1",
    "a byte": "RAW[0] += 1",
    "a precision": "torch.set_float32_matmul_precision('high')",
    "a flag": "torch.backends.cuda.enable_flash_sdp(False)",
}


@cache
def parameter_names() -> tuple[str, ...]:
    """The names of parameters of braze's own functions: what a program calls its keywords must not matter."""
    found: set[str] = set()
    for path in sorted(Path(braze.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arguments):
                found.update(a.arg for a in (*node.posonlyargs, *node.args, *node.kwonlyargs))
    return tuple(sorted(found))
