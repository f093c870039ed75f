"""The imports of the package keep to the layer table of pyproject.toml, in one direction and without cycles."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from braze.symbolic import names as sympy_names

ROOT = Path(__file__).parent.parent
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["braze"]
GROUPS = {"base": TABLE["base"], "stages": TABLE["stages"]}
MODULES = sorted((ROOT / "braze").rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """The row of the table that a module belongs to: braze.lower.pointwise -> lower, braze -> __init__."""
    return (module.split(".") + ["__init__"])[1]


@cache
def imports_of(path: Path) -> tuple[tuple[str, int, bool], ...]:
    """(absolute name, line, whether the import runs when the module is loaded) of each import."""
    found: list[tuple[str, int, bool]] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        for child in ast.iter_child_nodes(node):
            loads = at_load and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                loads = False
            if isinstance(child, ast.Import):
                found.extend((alias.name, child.lineno, loads) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    package = module_name(path).split(".")
                    if path.name != "__init__.py":
                        package = package[:-1]
                    package = package[: len(package) - child.level + 1]
                    base = ".".join([*package, base] if base else package)
                found.append((base, child.lineno, loads))
                found.extend((f"{base}.{alias.name}", child.lineno, loads) for alias in child.names)
            visit(child, loads)

    visit(ast.parse(path.read_text()), True)
    return tuple(found)


def allowed(layer: str) -> set[str]:
    row = TABLE["layers"][layer]
    return {layer, *(name for entry in row for name in GROUPS.get(entry, [entry]))}


def is_record_of_upstream(layer: str, name: str) -> bool:
    return any(name in (f"braze.{s}", f"braze.{s}.records") for s in TABLE["reads"].get(layer, ()))


NAMES = {module_name(path) for path in MODULES}


def braze_imports(path: Path) -> list[tuple[str, int, bool]]:
    """The package's own modules that a file imports."""
    return [
        (name, line, loads) for name, line, loads in imports_of(path) if name in NAMES and name != "braze"
    ]


def test_every_module_has_a_row():
    layers = {layer_of(name) for name in NAMES}
    assert layers <= set(TABLE["layers"]), "add the new package to [tool.braze.layers]"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_only_what_its_row_allows(path: Path):
    layer = layer_of(module_name(path))
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for name, line, _ in braze_imports(path)
        if layer_of(name) not in allowed(layer) and not is_record_of_upstream(layer, name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_leaves_pytorchs_compiler_stack_alone(path: Path):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for name, line, _ in imports_of(path)
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
    graph = {module_name(p): {n for n, _, _ in imports_of(p) if n in names} - {module_name(p)} for p in paths}
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
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root: ast.AST = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id == "torch" and not known(ast.unparse(node)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    for name, line, _ in imports_of(path):
        private = any(p.startswith("_") and not p.startswith("__") for p in name.split("."))
        if name.startswith("torch.") and private and not known(name):
            found.append(f"{path.relative_to(ROOT)}:{line} {name}")
    return found


@cache
def own_names() -> frozenset[str]:
    """All that the package itself names: functions, classes, variables, attributes that it sets, slots and words of C."""
    found: set[str] = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
    for path in (ROOT / "braze" / "native" / "src").glob("*.c"):
        found.update(re.findall(r'\{"(_\w+)",', path.read_text()))
    return frozenset(found)


def private_parts(path: Path) -> list[str]:
    """Private attributes of whatever object, by a dot or by name, that are none of ours: ``x._y``, ``getattr(x, "_y")``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name, of = node.attr, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            given = node.args[1]
            name, of = (given.value if isinstance(given, ast.Constant) else ""), ast.unparse(node.args[0])
        else:
            continue
        if not name.startswith("_") or name.startswith("__") or name in own_names():
            continue
        allowed = TABLE["known_parts"].get(name, ())
        if (
            of.split(".")[-1] != "aten" and module_name(path)[6:] not in allowed
        ):  # an operator's name is public
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {of}.{name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_private_names_of_torch_stand_in_one_file(path: Path):
    if module_name(path) in TABLE["private_torch"]:
        return
    assert not private_torch_names(path), "move these to one of braze/graph/torch_*.py"
    assert not private_parts(path), "move these to one of braze/graph/torch_*.py"


def test_every_known_part_is_asked_for_where_the_table_says():
    text = {module_name(path)[6:]: path.read_text() for path in MODULES}
    rows = [(name, file) for name, files in TABLE["known_parts"].items() for file in files]
    assert [(name, file) for name, file in rows if not re.search(rf"\b{name}\b", text.get(file, ""))] == []


def test_sympys_names_stand_once():
    """``symbolic/names.py`` has them as text; only PyTorch's symbols fetch the classes themselves."""
    values = {v for k, v in vars(sympy_names).items() if k.isupper() and isinstance(v, str)}
    assert len(values) > 30
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for path in MODULES
        if module_name(path) not in ("braze.symbolic.names", "braze.graph.torch_symbols")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in values
    ]
    assert not found, "\n".join(found)


def test_the_docstring_of_a_room_tells_what_it_may_import():
    """Each room's last sentence is its row of the table."""
    wrong = {}
    for layer, rows in ROOMS.items():
        for room, row in rows.items():
            text = ast.get_docstring(ast.parse((ROOT / "braze" / layer / room / "__init__.py").read_text()))
            said = re.findall(r"Imports ([^.]+)\.$", text or "")
            words = set(re.findall(r"\w+", said[0])) - {"and"} if said else set()
            if words != (set(row) or {"no", "other", "room"}):
                wrong[f"{layer}.{room}"] = sorted(words)
    assert not wrong
