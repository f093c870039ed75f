"""Whose code an exception comes from: the program's own, which it is to have, or what braze and the libraries make of its data."""

from __future__ import annotations

import sys

#: packages that are called by whoever calls: what they raise is their callers' affair
_LIBRARIES = frozenset({"torch", "sympy", "igraph", "numpy", *sys.stdlib_module_names})
#: files of functions that braze or PyTorch has written
_GENERATED = ("<braze ", "braze_graph_", "<eval_with_key>")


def is_of_program(error: BaseException) -> bool:
    """Whether the program's own code raised it: an operator's kernel, a hook, the policy of a checkpoint, a decomposition, a backend."""
    raiser = "braze"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_GENERATED):
            raiser = "braze"
        else:
            package = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
            if package not in _LIBRARIES:
                raiser = package
        trace = trace.tb_next
    return raiser != "braze"
