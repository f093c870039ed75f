"""The imports of the package keep to the layer table of pyproject.toml, in one direction and without cycles."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from braze.symbolic import names as sympy_names

ROOT = Path(__file__).parent.parent
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["braze"]
GROUPS = {"base": TABLE["base"]}
MODULES = sorted((ROOT / "braze").rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """The row of the table that a module belongs to: braze.lower.elementwise.pointwise -> lower, braze -> __init__."""
    return (module.split(".") + ["__init__"])[1]


class Read(NamedTuple):
    """What one walk through a file finds."""

    #: (absolute name, line, whether the import runs when the module is loaded) of each import
    imports: list[tuple[str, int, bool]]
    #: (line, text) of what is written torch._something
    of_torch: list[tuple[int, str]]
    #: (line, object, name) of private attributes that are read, by a dot or by name: ``x._y``, ``getattr(x, "_y")``
    private: list[tuple[int, str, str]]
    #: functions, classes, variables and attributes that the file itself names
    named: set[str]
    #: (line, value) of texts
    texts: list[tuple[int, str]]


@cache
def read(path: Path) -> Read:
    """A file, parsed and walked through once for all tests: the package is a million nodes."""
    found = Read([], [], [], set(), [])

    def visit(node: ast.AST, at_load: bool) -> None:
        for child in ast.iter_child_nodes(node):
            loads = at_load
            match child:
                case ast.Import():
                    found.imports.extend((alias.name, child.lineno, loads) for alias in child.names)
                case ast.ImportFrom():
                    base = absolute(child, path)
                    found.imports.append((base, child.lineno, loads))
                    found.imports.extend(
                        (f"{base}.{alias.name}", child.lineno, loads) for alias in child.names
                    )
                case ast.Attribute():
                    note_attribute(child, found)
                case ast.Name():
                    if not isinstance(child.ctx, ast.Load):
                        found.named.add(child.id)
                case ast.Constant():
                    if isinstance(child.value, str):
                        found.texts.append((child.lineno, child.value))
                case ast.Call():
                    note_call(child, found)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.named.add(child.name)
                    loads = False
                case ast.ClassDef():
                    found.named.add(child.name)
                case ast.Lambda():
                    loads = False
                case ast.If():
                    loads = loads and "TYPE_CHECKING" not in ast.unparse(child.test)
            visit(child, loads)

    visit(ast.parse(path.read_text()), True)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module that names are imported from."""
    base = node.module or ""
    if not node.level:
        return base
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, base] if base else package)


def note_attribute(node: ast.Attribute, found: Read) -> None:
    if not isinstance(node.ctx, ast.Load):
        found.named.add(node.attr)
    if not is_private(node.attr):
        return
    text, of = ast.unparse(node), ast.unparse(node.value)
    if text.startswith("torch.") and re.fullmatch(r"[\w.]+", text):
        found.of_torch.append((node.lineno, text))
    if isinstance(node.ctx, ast.Load):
        found.private.append((node.lineno, of, node.attr))


def note_call(node: ast.Call, found: Read) -> None:
    if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr"):
        match node.args:
            case [of, ast.Constant(value=str(name)), *_] if is_private(name):
                found.private.append((node.lineno, ast.unparse(of), name))


def allowed(layer: str) -> set[str]:
    row = TABLE["layers"][layer]
    return {layer, *(name for entry in row for name in GROUPS.get(entry, [entry]))}


def is_record_of_upstream(layer: str, name: str) -> bool:
    return any(name in (f"braze.{s}", f"braze.{s}.facts.records") for s in TABLE["reads"].get(layer, ()))


NAMES = {module_name(path) for path in MODULES}


def braze_imports(path: Path) -> list[tuple[str, int, bool]]:
    """The package's own modules that a file imports."""
    return [
        (name, line, loads) for name, line, loads in read(path).imports if name in NAMES and name != "braze"
    ]


def test_every_module_has_a_row():
    layers = {layer_of(name) for name in NAMES}
    assert layers <= set(TABLE["layers"]), "add the new package to [tool.braze.layers]"


def test_imports_only_what_its_row_allows():
    wrong = []
    for path in MODULES:
        layer = layer_of(module_name(path))
        row = allowed(layer)
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for name, line, _ in braze_imports(path)
            if layer_of(name) not in row and not is_record_of_upstream(layer, name)
        ]
    assert not wrong, "\n".join(wrong)


def told(path: Path) -> set[str]:
    """What a file imports of the package, and what it names in texts, by which it imports later."""
    return {name for name, _, _ in braze_imports(path)} | {
        text for _, text in read(path).texts if text.startswith("braze.")
    }


@pytest.mark.parametrize("layer", TABLE["layers"])
def test_a_row_allows_nothing_that_nobody_imports(layer: str):
    files = [path for path in MODULES if layer_of(module_name(path)) == layer]
    imported = {layer_of(name) for path in files for name in told(path)}
    assert {name for name in TABLE["layers"][layer] if name not in GROUPS} <= imported


def test_leaves_pytorchs_compiler_stack_alone():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        for name, line, _ in read(path).imports
        if any(name == bad or name.startswith(bad + ".") for bad in TABLE["forbidden"])
        or name.endswith(".make_fx")
    ]
    assert not wrong, "\n".join(wrong)


def needs(path: Path) -> set[str]:
    """The modules that a file needs, by whatever import: at load, in a function, for types alone."""
    found = {name for name, _, _ in braze_imports(path)}
    # `from braze.a import b` where b is a module means braze.a.b; that a package is loaded first is no need of it
    return {n for n in found if not any(other.startswith(n + ".") for other in found)} - {module_name(path)}


def test_no_two_modules_know_each_other():
    """No circle by any import, those in functions and under TYPE_CHECKING included."""
    try:
        list(TopologicalSorter({module_name(path): needs(path) for path in MODULES}).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_benchmarks_know_each_other_in_one_direction():
    paths = sorted((ROOT / "benchmarks").glob("*.py"))
    names = {module_name(path) for path in paths}
    graph = {
        module_name(p): {n for n, _, _ in read(p).imports if n in names} - {module_name(p)} for p in paths
    }
    list(TopologicalSorter({k: v - {"benchmarks"} for k, v in graph.items()}).static_order())


ROOMS = TABLE["rooms"]


@pytest.mark.parametrize("layer", ROOMS)
def test_every_folder_of_a_layer_is_a_room(layer: str):
    folders = {p.name for p in (ROOT / "braze" / layer).iterdir() if (p / "__init__.py").exists()}
    assert folders == set(ROOMS[layer])
    flat = {p.name for p in (ROOT / "braze" / layer).glob("*.py")}
    assert flat == {"__init__.py"}, "a file of this layer stands in one of its rooms"


@pytest.mark.parametrize("layer", ROOMS)
def test_rooms_import_only_what_lies_below_them(layer: str):
    wrong = []
    for path in MODULES:
        name = module_name(path)
        if not name.startswith(f"braze.{layer}.") or len(name.split(".")) < 4:
            continue
        room = name.split(".")[2]
        for found, line, _ in braze_imports(path):
            other = found.split(".")[2:3]
            if found.startswith(f"braze.{layer}.") and other != [room] and other[0] not in ROOMS[layer][room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("layer", "room"), [(layer, room) for layer in ROOMS for room in ROOMS[layer]])
def test_a_room_may_import_nothing_that_it_does_not(layer: str, room: str):
    inside = f"braze.{layer}.{room}."
    files = [path for path in MODULES if f"{module_name(path)}.".startswith(inside)]
    imported = {part for path in files for name in told(path) for part in name.split(".")[2:3]}
    assert set(ROOMS[layer][room]) <= imported


@pytest.mark.parametrize("layer", ROOMS)
def test_rooms_form_no_cycle(layer: str):
    list(TopologicalSorter(ROOMS[layer]).static_order())


def test_rows_name_known_packages():
    known = {*TABLE["layers"], *GROUPS}
    assert {name for row in TABLE["layers"].values() for name in row} <= known


def test_rows_form_no_cycle():
    """A lower row never imports a higher one: the table itself has an order."""
    list(TopologicalSorter({layer: allowed(layer) - {layer} for layer in TABLE["layers"]}).static_order())


def known(name: str) -> bool:
    return any(name == k or name.startswith(k + ".") for k in TABLE["known_torch"])


def private_torch_names(path: Path) -> list[str]:
    """Uses of torch._something written out in a file: ``torch._C.x``, ``from torch._x import y``."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {text}" for line, text in read(path).of_torch if not known(text)
    ]
    for name, line, _ in read(path).imports:
        private = any(is_private(p) for p in name.split("."))
        if name.startswith("torch.") and private and not known(name):
            found.append(f"{path.relative_to(ROOT)}:{line} {name}")
    return found


@cache
def own_names() -> frozenset[str]:
    """All that the package itself names: functions, classes, variables, attributes that it sets, slots and words of C."""
    found = {name for path in MODULES for name in read(path).named}
    for path in (ROOT / "braze" / "native" / "src").glob("*.c"):
        found.update(re.findall(r'\{"(_\w+)",', path.read_text()))
    return frozenset(found)


def private_parts(path: Path) -> list[str]:
    """Private attributes of whatever object that are none of ours."""
    return [
        f"{path.relative_to(ROOT)}:{line} {of}.{name}"
        for line, of, name in read(path).private
        if name not in own_names()
        and of.split(".")[-1] != "aten"  # an operator's name is public
        and module_name(path)[6:] not in TABLE["known_parts"].get(name, ())
    ]


def test_private_names_of_torch_stand_in_one_file():
    others = [path for path in MODULES if module_name(path) not in TABLE["private_torch"]]
    found = [text for path in others for text in (*private_torch_names(path), *private_parts(path))]
    assert not found, "\n".join(["move these to one of braze/graph/torch_*.py:", *found])


def test_every_known_part_is_asked_for_where_the_table_says():
    text = {module_name(path)[6:]: path.read_text() for path in MODULES}
    rows = [(name, file) for name, files in TABLE["known_parts"].items() for file in files]
    assert [(name, file) for name, file in rows if not re.search(rf"\b{name}\b", text.get(file, ""))] == []


def test_sympys_names_stand_once():
    """``symbolic/names.py`` has them as text; only PyTorch's symbols fetch the classes themselves."""
    values = {v for k, v in vars(sympy_names).items() if k.isupper() and isinstance(v, str)}
    assert len(values) > 30
    found = [
        f"{path.relative_to(ROOT)}:{line} {text}"
        for path in MODULES
        if module_name(path) not in ("braze.symbolic.names", "braze.graph.private.torch_symbols")
        for line, text in read(path).texts
        if text in values
    ]
    assert not found, "\n".join(found)


def test_the_docstring_of_a_folder_tells_what_it_may_import():
    """A sentence that begins with "Imports" is the row of a layer, or of a room."""
    rows = {f"{layer}/{room}": row for layer, rooms in ROOMS.items() for room, row in rooms.items()}
    rows |= {layer: row for layer, row in TABLE["layers"].items() if (ROOT / "braze" / layer).is_dir()}
    wrong = {}
    for folder, row in rows.items():
        text = ast.get_docstring(ast.parse((ROOT / "braze" / folder / "__init__.py").read_text()))
        (said,) = re.findall(r"\bImports ([^.:;]+?)(?:, and reads [^.]+)?[.:;]", text or "")
        nothing = {"no other room"} if "/" in folder else {"the standard library"}
        if set(re.split(r",\s|\sand\s", said.removesuffix(" only"))) != (set(row) or nothing):
            wrong[folder] = said
    assert not wrong


def test_no_file_is_longer_than_one_can_read_in_a_sitting():
    sources = [p for p in (ROOT / "braze").rglob("*") if p.suffix in (".py", ".pyi", ".c", ".h")]
    assert len(sources) > 600
    assert [p.name for p in sources if p.read_text().count("\n") > 600] == []
