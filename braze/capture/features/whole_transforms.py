"""Transforms that run whole, outside the graph; modes and marks that are entered and left."""

from __future__ import annotations

from types import NoneType
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Build, Constant
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.python.higher_order import break_around
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace
from braze.graph import torch_compat

FEATURE = Feature()
rule = FEATURE.call


@rule(torch.func.linearize, torch.func.functionalize)
def transform(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """They run a function transformed, at once."""
    break_around("a function is transformed by torch.func")


# -- function modes


class OpenMode:
    """A function mode entered in the trace. It cannot be rebuilt: a break inside moves before its start."""

    lives_in_trace = True


#: PyTorch's mode in which ``x[i]`` looks rows up by tensors: for functions under ``vmap`` that index tables
BY_INDEX = "TransformGetItemToIndex"


@rule(torch_compat.push_mode)
def push_mode(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The one mode that is known is a setting of the recorder; any other may do anything to every call."""
    mode = args[0]
    if type(mode).__name__ != BY_INDEX or t.outside.tree.node_of(mode) is not None:
        graph_break("BZ1019", f"the function mode {type(mode).__name__} is entered")
    mode.opened = t.done.claim(OpenMode())
    t.graph.recorder.by_index = True
    t.graph.open_modes.append(mode)


@rule(torch_compat.pop_mode)
def pop_mode(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The end of what ``push_mode`` began."""
    open_modes = t.graph.open_modes
    if not open_modes:
        graph_break("BZ1019", "a function mode is left that was entered outside")
    open_modes.pop().opened = None
    t.graph.recorder.by_index = bool(open_modes)


# -- marks of the profiler


class OpenMark:
    """What a ``record_function`` that the trace has entered holds. At a break inside it the real mark begins."""

    def __init__(self, name: Any, args: Any) -> None:
        self.name, self.args = name, args


def begun_mark(table: RecipeTable, mark: OpenMark) -> Build:
    """The mark that lasts from a break on to the end of its block, which runs after it."""
    begin = table.add(Constant(torch_compat.begin_mark))
    return Build("call", (begin, table.id_of(mark.name), table.id_of(mark.args)))


FEATURE.recipes[OpenMark] = begun_mark


Mark = torch.autograd.profiler.record_function


@rule(Mark.__init__)
def make_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Its own code speaks to TorchScript in types made of text, which only ``compile`` reads."""
    mark, *given = args
    if not all(type(v) in (str, NoneType) for v in (*given, *kwargs.values())):
        graph_break("BZ1019", "a record_function with a name that the trace does not know")
    vars(mark).update(vars(Mark(*given, **kwargs)))


@rule(Mark.__enter__)
def enter_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if t.outside.tree.node_of(args[0]) is not None:
        graph_break("BZ1019", "a record_function from outside is entered")
    args[0].record = t.done.claim(OpenMark(args[0].name, args[0].args))
    return args[0]


@rule(Mark.__exit__)
def exit_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if type(getattr(args[0], "record", None)) is not OpenMark:
        graph_break("BZ1019", "a record_function from outside is left")
    args[0].record = None
