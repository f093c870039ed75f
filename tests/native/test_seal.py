"""The flat list of words that a walk compares once it has held: what it rests on, what breaks it, what it leaves out."""

from braze.native import GuardProgram, native_available


class Box:
    """An object of attributes."""

    shared = 1


class Other(Box):
    """Another class an object can be given."""


class Registry(dict):
    """A dictionary whose class can be changed."""


class Names(dict):
    """The class it can be changed to."""


def function(*args):
    return args


def sealed(program):
    """Whether the next walk compares the flat list (or there is only the plain walk)."""
    return program.sealed()[0] or not native_available


def walk_often(program, *args, times=4):
    """Walk until the program is sealed; every walk must hold."""
    for _ in range(times):
        found = program.match(function, args)
        assert found is not None
    assert sealed(program)
    return found


def box(**fields):
    made = Box()
    made.__dict__.update(fields)
    return made


TREE = [
    (-1, "local", 0),
    (0, "dict", "child"),
    (1, "dict", "table"),
    (2, "item", "a"),
    (1, "attr", "shared"),
    (0, "dict", "number"),
]
CHECKS = [
    (0, "type", Box),
    (1, "type", Box),
    (2, "keys", ("a", "b")),
    (3, "equal", 1),
    (4, "equal", 1),
    (0, "absent", ("extra",)),
]


def tree():
    return box(child=box(table={"a": 1, "b": 2}), number=5)


def replaced_dict(root):
    root.child.__dict__ = {"table": {"a": 2, "b": 2}}


OLDER = {"table": {"a": 2, "b": 2}}


def an_older_dict(root):
    """One that has not changed since before the walks."""
    root.child.__dict__ = OLDER


def with_vars(root):
    vars(root)["extra"] = 1


def changed_class(root):
    root.child.__class__ = Other


CHANGES = {
    "item": lambda root: root.child.table.__setitem__("a", 2),
    "key": lambda root: root.child.table.__setitem__("c", 2),
    "deleted key": lambda root: root.child.table.pop("b"),
    "cleared": lambda root: root.child.table.clear(),
    "attribute": lambda root: setattr(root, "child", box(table={"a": 2, "b": 2})),
    "deleted attribute": lambda root: delattr(root, "child"),
    "instance attribute over the class's": lambda root: setattr(root.child, "shared", 2),
    "__dict__": replaced_dict,
    "an older __dict__": an_older_dict,
    "vars()": with_vars,
    "class": changed_class,
}


def test_each_change_is_seen_behind_the_seal():
    for name, change in CHANGES.items():
        program = GuardProgram(TREE, CHECKS, [5])
        root = tree()
        assert walk_often(program, root) == (5,)
        change(root)
        assert program.match(function, (root,)) is None, name
        assert program.match(function, (tree(),)) == (5,)
        assert program.match(function, (root,)) is None, name


def deep(levels, width):
    """A tree of objects, each with a dictionary of its own and one more of numbers; all its objects."""
    root, level, found = box(own={"n": 0}, parts={}), [], []
    level = found = [root]
    for _ in range(levels):
        below = []
        for parent in level:
            for i in range(width):
                part = box(own={"n": len(found) + len(below)}, parts={})
                parent.parts[str(i)] = part
                below.append(part)
        found = found + below
        level = below
    return root, found


def deep_program(levels, width):
    """Guards all numbers of such a tree; they are the inputs."""
    nodes, checks, inputs, level = [(-1, "local", 0)], [], [], [0]

    def node(parent, step, key):
        nodes.append((parent, step, key))
        return len(nodes) - 1

    for depth in range(levels + 1):
        below = []
        for owner in level:
            checks.append((owner, "type", Box))
            inputs.append(node(node(owner, "dict", "own"), "item", "n"))
            if depth < levels:
                parts = node(owner, "dict", "parts")
                checks.append((parts, "length", width))
                below += [node(parts, "item", str(i)) for i in range(width)]
        level = below
    return GuardProgram(nodes, checks, inputs)


def test_each_place_of_a_deep_tree_is_looked_at_in_both_directions():
    root, parts = deep(3, 3)
    program = deep_program(3, 3)
    numbers = tuple(range(len(parts)))
    assert walk_often(program, root) == numbers
    for i, part in enumerate(parts):
        for again in range(1 + i % 2):
            assert program.match(function, (root,)) == numbers
        part.own["n"] = -1
        assert program.match(function, (root,)) == (*numbers[:i], -1, *numbers[i + 1 :])
        part.own["n"] = i
        program.patience = 0
        walk_often(program, root)
        part.__class__ = Other
        assert program.match(function, (root,)) is None
        part.__class__ = Box
        program.patience = 0
        walk_often(program, root)
        if part.parts:
            last = part.parts.popitem()
            assert program.match(function, (root,)) is None
            part.parts.update([last])
            program.patience = 0
            walk_often(program, root)


def test_parts_of_a_deep_tree_that_were_freed_are_not_looked_at():
    root, _ = deep(3, 3)
    program = deep_program(3, 3)
    for _ in range(50):
        program.patience = 0
        found = walk_often(program, root)
        new = deep(3, 3)[0]
        root.parts, root.own["n"] = new.parts, found[0] + 1
        del new
        assert program.match(function, (root,)) == (found[0] + 1, *found[1:])
    root.parts["1"].parts.clear()
    assert program.match(function, (root,)) is None


def test_a_class_that_changes_breaks_the_seal():
    program, root = GuardProgram(TREE, CHECKS, []), tree()
    walk_often(program, root)
    Box.shared = 3
    try:
        assert program.match(function, (root,)) is None
    finally:
        Box.shared = 1
    assert program.match(function, (root,)) == ()


def test_a_changed_value_that_nothing_is_asked_of_is_handed_on():
    program, root = GuardProgram(TREE, CHECKS, [5]), tree()
    walk_often(program, root)
    for number in range(20):
        root.number = number
        assert program.match(function, (root,)) == (number,)


def test_what_breaks_the_seal_again_and_again_is_left_out_of_it():
    program, root = GuardProgram(TREE, CHECKS, [5]), tree()
    for number in range(100):
        root.number = number
        assert program.match(function, (root,)) == (number,)
    words = program.sealed()[1]
    for number in range(10):
        root.number = number
        assert program.match(function, (root,)) == (number,)
        assert sealed(program)
    assert program.sealed()[1] == words
    root.child.table["a"] = 2
    assert program.match(function, (root,)) is None


def test_another_root_is_another_walk():
    program, roots = GuardProgram(TREE, CHECKS, [1]), [tree(), tree()]
    for _ in range(50):
        for root in roots:
            assert program.match(function, (root,)) == (root.child,)
    roots[1].child.table["a"] = 2
    assert program.match(function, (roots[0],)) == (roots[0].child,)
    assert program.match(function, (roots[1],)) is None


def test_a_check_that_fails_leaves_the_seal_whole():
    nodes, checks = (
        [*TREE, (-1, "local", 1)],
        [*CHECKS, (6, "int", ("sym", 0)), (-1, "range", lambda s: s[0] < 9)],
    )
    program, root = GuardProgram(nodes, checks, [5], 1), tree()
    walk_often(program, root, 3)
    for other in ("three", 3.0, None, 9):
        assert program.match(function, (root, other)) is None
        assert sealed(program)
    assert program.match(function, (root, 4)) == (5,)


def test_what_a_list_holds_is_read_each_time():
    nodes = [
        (-1, "local", 0),
        (0, "dict", "parts"),
        (1, "item", 0),
        (2, "dict", "n"),
        (1, "item", 1),
        (4, "dict", "n"),
    ]
    checks = [(3, "equal", 1), (5, "equal", 2), (1, "length", 2)]
    program, root = GuardProgram(nodes, checks, [2, 4]), box(parts=[box(n=1), box(n=2)])
    walk_often(program, root)
    first = root.parts[0]
    root.parts[0] = box(n=1)
    assert program.match(function, (root,)) == tuple(root.parts)
    root.parts[0] = box(n=2)
    assert program.match(function, (root,)) is None
    root.parts[0] = first
    walk_often(program, root, times=40)
    root.parts.append(None)
    assert program.match(function, (root,)) is None
    root.parts.pop()
    root.parts = [box(n=2), box(n=1)]
    assert program.match(function, (root,)) is None


def test_a_dictionary_may_change_its_class():
    nodes = [(-1, "local", 0), (0, "dict", "names"), (1, "item", "a")]
    program = GuardProgram(nodes, [(1, "type", Registry), (2, "equal", 1)], [])
    root = box(names=Registry(a=1))
    walk_often(program, root)
    root.names.__class__ = Names
    assert program.match(function, (root,)) is None
    root.names.__class__ = Registry
    assert program.match(function, (root,)) == ()


def test_values_that_must_differ():
    count = 50
    nodes = [
        (-1, "local", 0),
        *((0, "dict", f"n{i}") for i in range(count)),
        (-1, "local", 1),
        (-1, "local", 2),
    ]
    extra = (count + 1, count + 2)
    program = GuardProgram(nodes, [(1, "distinct", tuple(range(2, count + 3)))], extra)
    root = box(**{f"n{i}": object() for i in range(count)})
    a, b = object(), object()
    walk_often(program, root, a, b)
    for _ in range(3):
        x, y = object(), object()
        assert program.match(function, (root, x, y)) == (x, y)
        assert program.match(function, (root, x, x)) is None
        assert program.match(function, (root, root.n7, y)) is None
        assert program.match(function, (root, x, root.n49)) is None
        assert program.match(function, (root, y, x)) == (y, x)
        assert sealed(program)
    root.n3 = root.n4
    assert program.match(function, (root, a, b)) is None


def test_programs_that_rest_on_the_same_dictionaries():
    first, second = GuardProgram(TREE, CHECKS, [5]), GuardProgram(TREE, CHECKS, [1])
    root = tree()
    walk_often(first, root)
    walk_often(second, root)
    for value in (2, 1, 2, 1, 2, 1):
        root.child.table["a"] = value
        for program in (first, second, first):
            assert (program.match(function, (root,)) is None) == (value == 2)
        if value == 1:
            first.patience = 0
            walk_often(first, root)
    root.child.table["a"] = 2  # the second one has not walked since
    assert second.match(function, (root,)) is None
    assert first.match(function, (root,)) is None


def test_a_dictionary_that_others_change_is_no_matter():
    program, root = GuardProgram(TREE, CHECKS, [5]), tree()
    others = [GuardProgram(TREE, CHECKS, [5]) for _ in range(100)]
    roots = [tree() for _ in others]
    walk_often(program, root)
    for other, its_root in zip(others, roots, strict=True):
        walk_often(other, its_root)
    for number in range(50):
        for its_root in roots:
            its_root.number = number
            its_root.child.table["a"] = number
        assert program.match(function, (root,)) == (5,)
        assert sealed(program)
    for other, its_root in zip(others, roots, strict=True):
        assert other.match(function, (its_root,)) is None
    del roots, its_root
    assert program.match(function, (root,)) == (5,) and sealed(program)
    root.child.table["a"] = 2
    assert program.match(function, (root,)) is None


def test_the_same_object_on_two_paths():
    nodes = [(-1, "local", 0), (0, "dict", "a"), (0, "dict", "b"), (-1, "local", 1)]
    program = GuardProgram(nodes, [(1, "alias", 2), (3, "alias", 1)], [])
    shared = object()
    root = box(a=shared, b=shared)
    walk_often(program, root, shared)
    assert program.match(function, (root, object())) is None
    root.b = object()
    assert program.match(function, (root, shared)) is None


def test_nothing_is_kept_alive():
    import gc
    import weakref

    program, root = GuardProgram(TREE, CHECKS, []), tree()
    walk_often(program, root)
    gone = [weakref.ref(root), weakref.ref(root.child)]
    del root
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert program.match(function, (tree(),)) == ()


def test_a_tree_that_was_freed_is_not_looked_at():
    """New objects at old addresses are told from what was there."""
    program = GuardProgram(TREE, CHECKS, [5])
    for number in range(300):
        root = tree()
        for _ in range(4):
            assert program.match(function, (root,)) == (5,)
        if number % 3 == 0:
            root.child.table["a"] = 2
        elif number % 3 == 1:
            root.child = box(table={"a": 3, "b": 2})
        else:
            del root.child.__dict__["table"]
        assert program.match(function, (root,)) is None
        del root


def test_an_item_taken_by_an_int_is_read_after_both_at_each_walk():
    """Whichever of the two lies deeper, or was made first: neither hangs on the other."""
    deep = [
        (-1, "local", 1),
        (0, "item", 0),
        (1, "item", 0),
        (2, "item", 0),
        (-1, "local", 0),
        (4, "item", 0),
    ]
    flat = [
        (-1, "local", 0),
        (0, "item", 0),
        (-1, "local", 1),
        (2, "item", 0),
        (3, "item", 0),
        (4, "item", 0),
    ]
    for nodes, x, y in ((deep, 5, 3), (flat, 1, 5)):
        for holder, at in ((x, y), (y, x)):
            checks = [(6, "type", int), (at, "int", ("sym", 0))]
            program = GuardProgram(
                [*nodes, (holder, "item_at", at), (6, "negative", None)], checks, (6, 7, at), 1
            )

            def match(numbers, index, in_x=holder == x, program=program):
                args = ([numbers], [[[index]]]) if in_x else ([index], [[[numbers]]])
                return program.match(function, args)

            for turn in range(60):
                numbers, index = [7 + turn // 5, 8, 9], turn % 3
                assert match(numbers, index) == (numbers[index], -numbers[index], index)
            assert sealed(program)
            assert (
                match([7, 8], 2) is None
                and match([7, 8, 9.5], 2) is None
                and match([7, 8, 9.5], 1) == (8, -8, 1)
            )
