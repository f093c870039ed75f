"""What the walk rests on: every change to a dictionary or class is seen, on each version of CPython."""

from collections import OrderedDict, defaultdict

from braze.native import GuardProgram, native_available


def function(x):
    return x


class Box:
    """An object with attributes."""

    def __init__(self):
        self.a = 1
        self.b = "two"


def set_a(box, value):
    box.a = value


def program_for_box():
    """Guards box.a == 1, box.b == "two", no attribute `c`."""
    return GuardProgram(
        [(-1, "local", 0), (0, "dict", "a"), (0, "dict", "b")],
        [(0, "type", Box), (1, "equal", 1), (2, "equal", "two"), (0, "absent", ("c",))],
        [0],
    )


def assert_sees(change, undo=None):
    """After clean walks, ``change(box)`` must be seen; after ``undo(box)`` it matches again."""
    program, box = program_for_box(), Box()
    for _ in range(3):
        assert program.match(function, (box,)) == (box,)
    assert program.blocks()[1] >= 1 or not native_available
    change(box)
    assert program.match(function, (box,)) is None
    if undo is not None:
        undo(box)
        assert program.match(function, (box,)) == (box,)


def test_attribute_store_is_seen():
    assert_sees(lambda box: set_a(box, 2), lambda box: set_a(box, 1))


def test_specialised_attribute_store_is_seen():
    """The interpreter's specialised stores go around the dictionary's methods."""
    program, box = program_for_box(), Box()
    assert program.match(function, (box,)) == (box,)
    for value in range(1, 200):
        set_a(box, value)
        assert (program.match(function, (box,)) is not None) == (value == 1)
    for value in (1, 2, 1, 1, 3, 1):
        set_a(box, value)
        assert (program.match(function, (box,)) is not None) == (value == 1)


def test_warm_store_on_a_fresh_object_is_seen():
    """The same, with the store specialised on objects whose dictionary was never asked for."""
    for _ in range(100):
        set_a(Box(), 5)
    assert_sees(lambda box: set_a(box, 2), lambda box: set_a(box, 1))


def test_setattr_delattr_and_new_attribute_are_seen():
    assert_sees(lambda box: setattr(box, "a", 1.0), lambda box: object.__setattr__(box, "a", 1))
    assert_sees(lambda box: delattr(box, "a"), lambda box: setattr(box, "a", 1))
    assert_sees(lambda box: setattr(box, "c", 0), lambda box: delattr(box, "c"))


def test_methods_of_the_dictionary_are_seen():
    assert_sees(lambda box: box.__dict__.update(a=3), lambda box: box.__dict__.update(a=1))
    assert_sees(lambda box: box.__dict__.pop("b"), lambda box: box.__dict__.setdefault("b", "two"))
    assert_sees(lambda box: box.__dict__.clear(), lambda box: box.__init__())
    assert_sees(lambda box: box.__dict__.popitem(), lambda box: box.__init__())
    assert_sees(lambda box: box.__dict__.__ior__({"c": 1}), lambda box: box.__dict__.pop("c"))
    assert_sees(lambda box: box.__dict__.__setitem__("a", True), lambda box: box.__dict__.__setitem__("a", 1))


def test_another_dictionary_is_seen():
    def swap(box):
        box.__dict__ = {"a": 2, "b": "two"}

    assert_sees(swap, lambda box: setattr(box, "a", 1))


def test_another_class_is_seen():
    class Other(Box):
        pass

    def become(cls):
        return lambda box: setattr(box, "__class__", cls)

    assert_sees(become(Other), become(Box))


def test_another_object_of_the_class_is_read():
    program, first, second = program_for_box(), Box(), Box()
    second.a = 2
    for _ in range(3):
        assert program.match(function, (first,)) == (first,)
        assert program.match(function, (second,)) is None


def test_objects_at_a_reused_address_are_read():
    program = program_for_box()
    for value in [1, 2] * 200:
        box = Box()
        box.a = value
        assert (program.match(function, (box,)) is not None) == (value == 1)
        del box


def test_items_of_plain_and_derived_dicts():
    for kind in (dict, OrderedDict, lambda items: defaultdict(list, items)):
        table = kind({"x": 1, "y": 2})
        program = GuardProgram(
            [(-1, "local", 0), (0, "item", "x"), (0, "key", 1)],
            [
                (1, "equal", 1),
                (2, "equal", "y"),
                (0, "length", 2),
                (0, "keys", ("x", "y")),
                (0, "has_key", ("y", True)),
                (0, "has_key", ("z", False)),
            ],
            [1],
        )
        for _ in range(3):
            assert program.match(function, (table,)) == (1,)
        table["x"] = 5
        assert program.match(function, (table,)) is None
        table["x"] = 1
        assert program.match(function, (table,)) == (1,)
        table["z"] = 1
        assert program.match(function, (table,)) is None
        del table["z"]
        value = table.pop("x")
        table["x"] = value  # the order is another now
        assert program.match(function, (table,)) is None


def test_move_to_end_of_an_ordered_dict_is_seen():
    """It changes nothing in the dictionary beneath."""
    table = OrderedDict(x=1, y=2)
    program = GuardProgram([(-1, "local", 0)], [(0, "keys", ("x", "y"))], [0])
    for _ in range(3):
        assert program.match(function, (table,)) is not None
    table.move_to_end("x")
    assert program.match(function, (table,)) is None
    table.move_to_end("y")
    assert program.match(function, (table,)) is not None


def test_lists_tuples_and_cells_are_read_at_each_walk():
    items = [1, (2, 3)]
    program = GuardProgram(
        [(-1, "local", 0), (0, "item", 0), (0, "item", 1), (2, "item", 1)],
        [(0, "type", list), (0, "length", 2), (1, "equal", 1), (3, "equal", 3)],
        [],
    )
    assert program.match(function, (items,)) == ()
    items[1] = (2, 4)
    assert program.match(function, (items,)) is None
    items[1] = (2, 3)
    assert program.match(function, (items,)) == ()
    items.append(0)
    assert program.match(function, (items,)) is None


def test_class_attributes_follow_the_class_and_its_bases():
    class Base:
        size = 4

    class Derived(Base):
        pass

    program = GuardProgram(
        [(-1, "local", 0), (0, "type", None), (1, "class_attr", "size")],
        [(2, "equal", 4), (1, "is", Derived)],
        [],
    )
    value = Derived()
    for _ in range(3):
        assert program.match(function, (value,)) == ()
    Base.size = 5
    assert program.match(function, (value,)) is None
    Derived.size = 4
    assert program.match(function, (value,)) == ()
    del Derived.size
    assert program.match(function, (value,)) is None
    Base.size = 4
    assert program.match(function, (value,)) == ()


def test_attribute_follows_the_class_too():
    class Plain:
        unit = 1

    program = GuardProgram([(-1, "local", 0), (0, "attr", "unit")], [(1, "equal", 1)], [])
    value = Plain()
    for _ in range(3):
        assert program.match(function, (value,)) == ()
    Plain.unit = 2
    assert program.match(function, (value,)) is None
    value.unit = 1
    assert program.match(function, (value,)) == ()
    Plain.unit = property(lambda self: 1)  # would run Python code
    assert program.match(function, (value,)) is None


GLOBAL = 3


def uses_global():
    return GLOBAL


def test_globals_and_builtins():
    global GLOBAL
    program = GuardProgram(
        [(-1, "global", "GLOBAL"), (-1, "global", "len")], [(0, "equal", 3), (1, "is", len)], []
    )
    for _ in range(3):
        assert program.match(uses_global, ()) == ()
    GLOBAL = 4
    assert program.match(uses_global, ()) is None
    GLOBAL = 3
    assert program.match(uses_global, ()) == ()
    globals()["len"] = print  # shadows the builtin
    try:
        assert program.match(uses_global, ()) is None
    finally:
        del globals()["len"]
    globals()["unrelated"] = object()
    assert program.match(uses_global, ()) == ()
    import builtins

    real = builtins.len
    builtins.len = lambda x: 0
    try:
        assert program.match(uses_global, ()) is None
    finally:
        builtins.len = real
    assert program.match(uses_global, ()) == ()
