"""A long-lived program sees random changes of an object graph exactly as a fresh plain walk does."""

import random
from collections import OrderedDict

from braze.native import GuardProgram, native_available, walk


class Base:
    shared = 1
    other = "x"


class Box(Base):
    """An object of attributes."""

    def method(self):
        return self


class Derived(Box):
    """Another class an object can be given."""


class Slotted:
    __slots__ = ("left", "right")


CONSTANTS = (0, 1, True, 1.5, "one", None, (1, "a"), -0.0)
ATTRIBUTES = ("a", "b", "c", "shared", "other", "left", "right")
CLASS_ATTRIBUTES = (("shared", 1), ("other", "x"))


def grow(rng, depth):
    """A random value: a constant, or a container or object of such."""
    kind = rng.randrange(7) if depth else 0
    if kind <= 1:
        return rng.choice(CONSTANTS)
    children = [grow(rng, depth - 1) for _ in range(3)]
    if kind == 2:
        return children
    if kind == 3:
        return tuple(children)
    if kind == 4:
        return rng.choice((dict, OrderedDict))(zip("xyz", children, strict=True))
    if kind == 5:
        slotted = Slotted()
        slotted.left, slotted.right = children[:2]
        return slotted
    box = rng.choice((Box, Derived))()
    for name, child in zip("abc", children, strict=True):
        setattr(box, name, child)
    return box


class Recorder:
    """Writes down the guards that a graph fulfils, as nodes and checks, and lists what can be changed."""

    def __init__(self, rng):
        self.rng = rng
        self.nodes, self.checks, self.places = [], [], []

    def node(self, parent, step, key):
        self.nodes.append((parent, step, key))
        return len(self.nodes) - 1

    def check(self, node, check, expected):
        if self.rng.random() < 0.8:
            self.checks.append((node, check, expected))

    def record(self, node, value):
        if isinstance(value, (Box, Slotted, list, dict)):
            self.places.append(value)
        self.check(node, "type", type(value))
        if isinstance(value, Box):
            for name in "abc":
                self.record(self.node(node, self.rng.choice(("dict", "attr")), name), value.__dict__[name])
            self.check(node, "absent", ("d", "shared"))
            space = self.node(node, "attr", "__dict__")
            self.check(self.node(space, "item", "a"), "type", type(value.a))
            self.check(space, "keys", tuple(value.__dict__))
            method = self.node(node, "attr", "method")  # a new object at each read
            self.check(self.node(method, "func", "self"), "alias", node)
            self.record(self.node(node, "attr", "shared"), value.shared)
            cls = self.node(node, "type", None)
            self.record(self.node(cls, "class_attr", "other"), type(value).other)
        elif isinstance(value, Slotted):
            self.record(self.node(node, "attr", "left"), value.left)
            self.record(self.node(node, "attr", "right"), value.right)
        elif isinstance(value, dict):
            self.check(node, "keys" if self.rng.random() < 0.5 else "length", tuple(value))
            if self.checks and self.checks[-1][1:] == ("length", tuple(value)):
                self.checks[-1] = (node, "length", len(value))
            self.check(node, "has_key", ("w", False))
            for key in value:
                self.record(self.node(node, "item", key), value[key])
            self.record(self.node(node, "key", 0), next(iter(value)))
        elif isinstance(value, (list, tuple)) and not walk_constant(value):
            self.check(node, "length", len(value))
            for index, item in enumerate(value):
                self.record(self.node(node, "item", index), item)
        elif walk_constant(value):
            self.check(node, "equal", value)


def walk_constant(value):
    """Whether ``equal`` takes the value."""
    return isinstance(value, (int, float, str, type(None))) or (
        isinstance(value, tuple) and all(map(walk_constant, value))
    )


def change(rng, place):
    """Change one place at random; a function that undoes it."""
    if isinstance(place, list):
        index, old = rng.randrange(len(place)), list(place)
        place[index] = rng.choice(CONSTANTS)
        if rng.random() < 0.3:
            place.append(0)
        return lambda: place.__setitem__(slice(None), old)
    if isinstance(place, Slotted):
        name = rng.choice(("left", "right"))
        old = getattr(place, name)
        setattr(place, name, rng.choice(CONSTANTS))
        return lambda: setattr(place, name, old)
    if isinstance(place, Box):
        return change_box(rng, place)
    old = list(place.items())

    def undo():
        place.clear()
        place.update(old)

    kind = rng.randrange(5)
    key = rng.choice(list(place))
    if kind == 0:
        place[key] = rng.choice(CONSTANTS)
    elif kind == 1:
        place["w"] = 1
    elif kind == 2:
        del place[key]
    elif kind == 3:
        place[key] = place.pop(key)
    elif isinstance(place, OrderedDict):
        place.move_to_end(key)
    return undo


def change_box(rng, box):
    old, cls = dict(box.__dict__), type(box)
    kind = rng.randrange(6)

    def undo():
        box.__class__ = cls
        box.__dict__.clear()
        for name, value in old.items():
            setattr(box, name, value)

    name = rng.choice("abc")
    if kind == 0:
        setattr(box, name, rng.choice(CONSTANTS))
    elif kind == 1:
        setattr(box, rng.choice(("d", "shared")), 1)
    elif kind == 2:
        delattr(box, name)
    elif kind == 3:
        box.__class__ = Derived if cls is Box else Box
    elif kind == 4:
        box.__dict__ = dict(old)
    else:
        box.__dict__[name] = rng.choice(CONSTANTS)
    return undo


def change_class(rng):
    cls, (name, _) = rng.choice((Base, Box, Derived)), rng.choice(CLASS_ATTRIBUTES)
    had, old = name in cls.__dict__, cls.__dict__.get(name)
    setattr(cls, name, rng.choice((1, "x", 2)))
    return lambda: setattr(cls, name, old) if had else delattr(cls, name)


def function(x):
    return x


def agree(program, root):
    """Both walks say the same; what they say."""
    program.patience = 0  # be sealed whenever it holds
    fast = program.match(function, (root,))
    plain = walk.match(program.nodes, program.checks, program.inputs, 0, function, (root,))
    assert (fast is None) == (plain is None), program.explain(function, (root,))
    if fast is not None:
        assert len(fast) == len(plain) and all(a is b or a == b for a, b in zip(fast, plain, strict=True))
    return fast is not None


def test_random_changes_are_seen():
    matched = missed = sealed = 0
    for seed in range(60):
        rng = random.Random(seed)
        root = Box()
        for name in "abc":
            setattr(root, name, grow(rng, 3))
        recorder = Recorder(rng)
        recorder.record(recorder.node(-1, "local", 0), root)
        inputs = rng.sample(range(len(recorder.nodes)), min(4, len(recorder.nodes)))
        program = GuardProgram(recorder.nodes, recorder.checks, inputs)
        sometimes = GuardProgram(
            recorder.nodes, recorder.checks, inputs
        )  # shares what dictionaries are asked of
        assert agree(program, root) and agree(sometimes, root)
        for _ in range(60):
            undo = change_class(rng) if rng.random() < 0.15 else change(rng, rng.choice(recorder.places))
            for _ in range(rng.randrange(1, 3)):
                if agree(program, root):
                    matched += 1
                else:
                    missed += 1
                if rng.random() < 0.3:
                    agree(sometimes, root)
            undo()
            assert agree(program, root) or recorder.checks
            matched += agree(program, root)
            if rng.random() < 0.5:
                agree(sometimes, root)
            sealed += program.sealed()[0]
    assert sealed > 1000 or not native_available
    assert matched > 1000 and missed > 1000, (matched, missed)
