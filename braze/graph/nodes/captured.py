"""The graph module that a capture hands to its backend; its Python code is written when somebody wants it.

A backend that compiles the graph never runs it as Python. For one that does (``backend="eager"``, and most that are
written in a few lines) ``forward`` is written here, in a third of the time that PyTorch takes for text meant to be
read; ``code``, and whatever follows an edit of the graph, are PyTorch's as ever.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch.fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from braze.graph.nodes.facts import facts
from braze.graph.private.torch_settings import enters_inference_mode, way_back

_numbers = itertools.count()

_INFIX: dict[Any, str] = {
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.truediv: "{} / {}",
    operator.matmul: "{} @ {}",
    operator.getitem: "{}[{}]",
}


class Captured(torch.fx.GraphModule):
    """A GraphModule over ``graph`` whose first code is written late. ``held``: subgraphs, by the names that nodes give."""

    #: which node each line of the code is of, where PyTorch has written that: its tracers ask every module of this kind (``torch.compile(gm)``)
    _lineno_map: dict[int, int | None] | None = None

    def __init__(self, graph: torch.fx.Graph, held: dict[str, Any] | torch.nn.Module | None = None) -> None:
        self.__dict__["_first"] = True
        super().__init__(held or {}, graph, class_name="Captured")

    def recompile(self) -> Any:
        """PyTorch's own, but for the call from the constructor."""
        if self.__dict__.pop("_first", False):
            self.__dict__["_late"] = True
            return None
        return self._write()

    def _write(self) -> Any:
        self.__dict__.pop("_late", None)
        return super().recompile()

    @property
    def code(self) -> str:
        """PyTorch's text of the graph."""
        if self.__dict__.get("_late"):
            self._write()
        return super().code

    def __reduce__(self) -> Any:
        """As text, which must have been written."""
        _ = self.code
        return super().__reduce__()

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """Writes the code; from then on the class of this one module has it as a plain method."""
        written = forward_of(self.graph)
        if written is None:
            self._write()
        else:
            type(self).forward = written  # type: ignore[method-assign, assignment]
        return getattr(self, "forward")  # noqa: B009  # no longer this property


class Late(Captured):
    """A module of a stage's own, whose code is written late after each ``recompile``, too. ``held``: as GraphModule's root."""

    def recompile(self) -> Any:
        """Forget the code."""
        if not self.__dict__.pop("_first", False) and "forward" in vars(type(self)):
            del type(self).forward
        self.__dict__["_late"] = True

    def __reduce__(self) -> Any:
        """As PyTorch's module."""
        return torch.fx.GraphModule(self, self.graph).__reduce__()


class _Text:
    """Tells tracebacks the text of generated code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, name: str) -> str:
        """As a loader of modules does."""
        return self.text


class _Unwritable(Exception):
    """The graph holds something that is left to PyTorch."""


def forward_of(graph: torch.fx.Graph) -> Callable[..., Any] | None:
    """``forward(self, *placeholders)`` that runs the graph and lets go of each value after its last use."""
    scope: dict[str, Any] = {}
    try:
        parameters, lines = _written(graph, scope)
    except _Unwritable:
        return None
    if any(facts(node).setting for node in graph.nodes):  # an error must not leave autocast on
        scope["__way_back"] = way_back
        modes = [node.name for node in graph.nodes if enters_inference_mode(node.target)]
        lines = ["    __set_back = __way_back()", "    try:", *["    " + line for line in lines]]
        lines += [
            "    except BaseException:",
            f"        __set_back([{', '.join(reversed(modes))}])",
            "        raise",
        ]
        # one that is not entered yet, or has been left, is None
        lines = [*[f"    {mode} = None" for mode in modes], *lines]
    name = f"braze_graph_{next(_numbers)}"
    text = f"def forward({', '.join(['self', *parameters])}):\n" + "\n".join(lines) + "\n"
    scope["__name__"], scope["__loader__"] = name, _Text(text)
    exec(compile(text, f"{name}.py", "exec"), scope)
    return scope["forward"]  # type: ignore[no-any-return]


def _written(graph: torch.fx.Graph, scope: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the parameters, and the lines of the body."""
    dead = _last_uses(graph)
    parameters: list[str] = []
    lines: list[str] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.args or node.name == "self":
                raise _Unwritable
            parameters.append(node.name)
        elif node.op == "output":
            lines.append(f"    return {_text(node.args[0], scope)}")
        else:
            gone = "".join([f"; {name} = None" for name in dead.get(node, ())])
            lines.append(f"    {node.name} = {_call(node, scope)}{gone}")
    return parameters, lines


def _last_uses(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[str]]:
    """Per node the names of values that nobody uses after it."""
    seen: set[torch.fx.Node] = set()
    dead: dict[torch.fx.Node, list[str]] = {}
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and node not in seen:
            dead.setdefault(node, []).append(node.name)
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                dead.setdefault(node, []).append(used.name)
    return dead


def _call(node: torch.fx.Node, scope: dict[str, Any]) -> str:
    args = [_text(a, scope) for a in node.args]
    if node.op == "call_function":
        infix = _INFIX.get(node.target)
        if (
            infix is not None
            and len(args) == 2
            and not node.kwargs
            and isinstance(node.args[0], torch.fx.Node)
        ):
            return infix.format(*args)
        called = _held(node.target, scope)
    elif node.op == "get_attr" and str(node.target).isidentifier():
        return f"self.{node.target}"
    elif node.op == "call_method" and isinstance(node.args[0], torch.fx.Node):
        called = f"{args.pop(0)}.{node.target}"
    else:
        raise _Unwritable
    for name, value in node.kwargs.items():
        if not name.isidentifier():
            raise _Unwritable
        args.append(f"{name}={_text(value, scope)}")
    return f"{called}({', '.join(args)})"


def _text(value: Any, scope: dict[str, Any]) -> str:
    """An argument as an expression; what has no short text is held by the function."""
    kind = type(value)
    if kind is torch.fx.Node:
        return value.name  # type: ignore[no-any-return]
    if (
        value is None
        or kind is int
        or kind is bool
        or kind is str
        or (kind is float and math.isfinite(value))
    ):
        return repr(value)
    if kind is tuple:
        return f"({''.join([_text(v, scope) + ', ' for v in value])})"
    if kind is list or kind is immutable_list:
        return f"[{', '.join([_text(v, scope) for v in value])}]"
    if kind is slice:
        return f"slice({_text(value.start, scope)}, {_text(value.stop, scope)}, {_text(value.step, scope)})"
    if kind is dict or kind is immutable_dict:
        return "{" + ", ".join([f"{_text(k, scope)}: {_text(v, scope)}" for k, v in value.items()]) + "}"
    if isinstance(value, _CONTAINERS) and kind is not torch.Size:
        raise _Unwritable
    return _held(value, scope)


#: in subclasses of these there may be nodes; any other object is an argument as it is, for which PyTorch's text may lack a name
_CONTAINERS = (tuple, list, dict, slice)


def _held(value: Any, scope: dict[str, Any]) -> str:
    """A name for an object; one name per object."""
    name = f"_{type(value).__name__}_{id(value)}"
    scope[name] = value
    return name
