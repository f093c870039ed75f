"""Settings: what each means, its default, and whether captures kept on disk depend on it.

An ``Options`` is immutable and handed to the stages inside a ``CompileContext``; no stage reads
settings ambiently. ``braze.compile(options={"name": value})`` and ``mode=`` make one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from braze.support.errors import UserError
from braze.support.record import record


def option(
    default: Any,
    help: str,
    *,
    in_capture: bool = False,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    environment: str = "",
) -> Any:
    """A field of Options: its help line, what a change of it changes, the words it takes, or the least of its numbers.

    ``in_capture``: a change of it makes other captures, so that those kept on disk are found by it.
    ``environment``: a variable that sets it (to a whole number; a switch to 1 or 0) where a call of ``braze.compile`` does not.
    """
    metadata = {
        "help": help,
        "in_capture": in_capture,
        "choices": choices,
        "least": least,
        "environment": environment,
    }
    return dataclasses.field(default=default, metadata=metadata)


@record
class Options:
    """Everything a user may set for one compile."""

    fullgraph: bool = option(False, "a graph break is an error")
    dynamic: bool | None = option(
        None,
        "sizes symbolic: never (False), at once (True), on change (None)",
        in_capture=True,
    )
    shapes: tuple[Any, ...] = option((), "sizes named up front (the word shapes=)", in_capture=True)
    recompile_limit: int = option(8, "variants per function before one generic variant serves", least=1)
    on_overflow: str = option(
        "generic",
        "past recompile_limit, where no variant fits: compile a generic variant that replaces the least used "
        "(generic), raise RecompileError (error), or run uncompiled (eager)",
        choices=("generic", "error", "eager"),
    )
    verify: int = option(
        0,
        "run the verifiers between stages: 0 off, 1 records, 2 after every pass",
        least=0,
        environment="BRAZE_VERIFY",
    )
    assert_indices: bool = option(
        True,
        'on a GPU an index that does not exist stops the program, as eager\'s kernels do ("device-side assert triggered"); without, such an index reads some element '
        "or stores none, and nobody is told",
    )
    fusion: bool = option(True, "fuse loops")
    max_fusion_steps: int = option(64, "loop nests in one kernel at most", least=1)
    gemm_template: bool = option(True, "use our own packed GEMM for linear layers on the CPU")
    matmul_template: bool | None = option(
        None,
        "matrix products on a GPU by our own kernels, norms before and sums after them in the same kernel: everywhere (True), "
        "nowhere (False), or where they were measured to be quicker, of few rows also by a rule (None)",
    )
    depthwise_template: bool | None = option(
        None,
        "depthwise convolutions on a GPU, without gradients, by our own kernels, what follows in the same kernel: everywhere (True), nowhere (False), or where they "
        "were measured to be quicker (None)",
    )
    grouped_template: bool | None = option(
        None,
        "products of rows that are sorted by which of a batch of matrices multiplies them (a mixture's experts) on a GPU by our own kernel, what follows in the same kernel: everywhere (True), "
        "nowhere (False), or where they were measured to be quicker, else by a rule (None)",
    )
    early_launches: str = option(
        "auto",
        "on Hopper, which kernels begin while the one ahead of them on the stream still runs, and wait for it by themselves: none; those that add what the one ahead leaves, "
        "outside of recordings (following); also products of a row or two, which read their weights meanwhile (products); or all that are no larger products (all). "
        "A graph's first kernel, and one behind a library's call, begins in its turn. auto: all of a graph whose products have few rows, as a decoder's step, else products. "
        "between: products, the graph's first too, ahead of which and behind whose last nothing runs but kernels of braze's, as between a served model's attention operators",
        choices=("none", "following", "products", "between", "all", "auto"),
    )
    launch_graphs: bool = option(
        True,
        "eight and more kernels of ours that follow one another on an NVIDIA GPU are launched as one graph of the driver's once their memory "
        "stays from call to call, which shows in some profilers as one piece of work",
    )
    measure_products: bool = option(
        True,
        "who multiplies two matrices on the CPU (our template, oneDNN, ATen) is measured once per shape and machine, and kept "
        "in the cache folder; else a rule decides",
        environment="BRAZE_MEASURE_PRODUCTS",
    )
    channels_last: bool | None = option(
        None,
        "convolutions of known sizes get their operands in channels-last: all (True), none (False), or but those whose sums "
        "round worse for it on the CPU (None), which in inference get weights that oneDNN has put in order once",
    )
    hoist: bool = option(True, "compute what depends on parameters only once, until they change")
    numerics: str = option(
        "float32",
        "half and bfloat16 values that a kernel neither stores nor decides by stay in float32 (float32), or are rounded after each "
        "operation, as in eager (eager)",
        choices=("float32", "eager"),
    )
    arena: bool = option(True, "keep one arena per graph between calls")
    threads: int = option(0, "threads of a CPU kernel; 0: as many as torch uses when it is built", least=0)
    fallback_random: bool = option(
        False, "dropout and other draws give eager's very numbers for a seed, by calls of ATen"
    )
    max_autotune: bool = option(
        False,
        "measure on a GPU the ways to compute each matrix product, our kernels and ATen's, and the cuts of other kernels (tiles, warps, rows held "
        "whole or walked), where that is not known yet; what is chosen is kept in the cache folder, and every later compile follows it",
    )
    coordinate_descent_tuning: bool = option(
        False,
        "measure the cuts of kernels, as max_autotune does, and walk on from the quickest, to tiles, warps and stages beside it, for as long as that "
        "gains; kept in the same way",
    )
    autotune_seconds: float = option(
        60.0,
        "seconds that building the kernels of one graph's measurements may take, and after which no other kernel than a product's is measured",
        least=0.0,
    )
    cudagraphs: bool = option(False, "record calls of graphs on a GPU, and replay them as CUDA graphs")
    cudagraph_measure: bool = option(
        False,
        "record only graphs that launches limit: those for which the GPU waits over a tenth of the time in the first calls",
    )
    cudagraph_sizes: int | tuple[int, ...] = option(
        16, "for how many choices of sizes a graph is recorded, those called most; or the sizes, as a list"
    )
    cudagraph_memory: float = option(
        0.5, "memory of all recordings of a GPU, as a share of its memory (up to 1) or in bytes"
    )
    cudagraph_launches: int = option(
        3,
        "graphs, and parts of them between cuts, of fewer launches are not recorded; a call of ATen counts for two",
    )
    splitting_ops: tuple[str, ...] = option(
        (),
        "operators ('mylib::attention', 'aten.mm.default') at which recorded graphs are cut, besides those that cannot be recorded",
    )
    outputs: str = option(
        "own",
        "outputs of a recorded graph: as in eager (own), or without copies and valid until the graph is called again (borrow); "
        "with verify, one that is read later is NaN, and raises an error on a GPU",
        choices=("own", "borrow"),
    )
    capture_scalar_outputs: bool = option(
        False,
        "a number read out of a tensor (.item(), int(t)) is a symbol, not a graph break",
        in_capture=True,
        environment="BRAZE_CAPTURE_SCALAR_OUTPUTS",
    )
    capture_dynamic_output_shape_ops: bool = option(
        False,
        "sizes that only the data tell (nonzero, x[mask]) are symbols, not graph breaks",
        in_capture=True,
        environment="BRAZE_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
    )
    memory_budget: float = option(
        1.0,
        "training: the peak memory to stay within, as a share of what costs no time (up to 1) or in bytes; "
        "less is bought with computing again",
    )
    partition: str = option(
        "min_cut",
        "training: what the forward saves: the fewest bytes that cost no time (min_cut), or what the backward reads, "
        "as eager does (default)",
        choices=("min_cut", "default"),
    )
    chunk_losses: bool | None = option(
        None,
        "a linear layer and the cross entropy of its result some rows at a time, so that the logits never exist whole: "
        "everywhere (True), nowhere (False), where they would take 64 MB or more (None)",
    )
    decompositions: tuple[tuple[Any, Any], ...] = option(
        (), "operator -> function of simpler operators, for this compile, before all others"
    )
    keep_captures: bool = option(
        False,
        "keep captures on disk: a later process of the same code compiles without tracing",
    )

    def capture_key(self) -> tuple[tuple[str, Any], ...]:
        """The settings that change captures."""
        return self._marked("in_capture")

    def _marked(self, mark: str) -> tuple[tuple[str, Any], ...]:
        return tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.metadata[mark])


#: mode -> the options it sets, with the meaning torch.compile gives the names
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "auto": {"cudagraphs": True, "cudagraph_measure": True},
    "max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
}

#: a memory budget above 1 that is less than this was meant as a share
FEWEST_BYTES = 1024


#: what the whole is of which a share is meant
WHOLES = {
    "memory_budget": "1.0 is the peak of a step that costs no time; there is nothing to gain above it",
    "cudagraph_memory": "1.0 is all memory of the GPU",
}


def _refused(name: str, takes: str, value: Any, hint: str) -> UserError:
    """Of an option's value that is not what it takes."""
    return UserError("BZ0003", f"option {name!r} takes {takes}, not {value!r}", hints=[hint])


def _check_memory(name: str, value: Any) -> None:
    if not (isinstance(value, float) and value > 0):
        raise _refused(name, "a share or bytes above 0", value, "0.5 is half, 2e9 are two gigabytes")
    if 1 < value < FEWEST_BYTES:
        raise UserError(
            "BZ0003",
            f"option {name!r} takes a share up to 1, or bytes: {value:g} bytes hold nothing",
            hints=[WHOLES[name]],
        )


def _sizes(value: Any) -> int | tuple[int, ...]:
    """The value of ``cudagraph_sizes``."""
    listed = (value,) if type(value) is int else value
    if not isinstance(listed, (list, tuple)) or any(type(n) is not int or n < 0 for n in listed):
        raise _refused(
            "cudagraph_sizes", "a number of sizes, or a list of sizes", value, "16, or [1, 2, 4, 8]"
        )
    return value if type(value) is int else tuple(dict.fromkeys(listed))


def _launches(value: Any) -> int:
    """The value of ``cudagraph_launches``."""
    if type(value) is not int or value < 0:
        raise _refused("cudagraph_launches", "a number of launches", value, "a whole number from 0 on")
    return value


def _operators(value: Any) -> tuple[str, ...]:
    """The value of ``splitting_ops``."""
    if not isinstance(value, (list, tuple)) or any(type(name) is not str for name in value):
        raise _refused("splitting_ops", "a list of operators' names", value, "['mylib::attention']")
    for name in value:
        if not 1 <= name.replace("::", ".").count(".") <= 2:
            raise UserError(
                "BZ0003",
                f"option 'splitting_ops' takes names of operators, not {name!r}",
                hints=["with the namespace: 'mylib::attention', or 'aten.mm.default'"],
            )
    return tuple(dict.fromkeys(value))


def _decompositions(value: Any) -> tuple[tuple[Any, Any], ...]:
    """The value of ``decompositions``."""
    if not isinstance(value, Mapping):
        raise UserError(
            "BZ0045",
            f"decompositions are a dict from operators to functions, not {type(value).__name__}",
            hints=['options={"decompositions": {torch.ops.aten.gelu: function}}'],
        )
    return tuple(value.items())


#: option -> what makes its value of what the user gives
PARSED = {
    "cudagraph_sizes": _sizes,
    "cudagraph_launches": _launches,
    "splitting_ops": _operators,
    "decompositions": _decompositions,
}


_ALWAYS = "leave it out: braze does so wherever that is quicker"
#: options of ``torch.compile``'s that braze has under another name or does not need, and what to do instead
INDUCTORS = {
    **dict.fromkeys(
        (
            "epilogue_fusion",
            "group_fusion",
            "layout_optimization",
            "pattern_matcher",
            "permute_fusion",
            "shape_padding",
        ),
        _ALWAYS,
    ),
    **dict.fromkeys(
        ("triton.cudagraphs", "triton.cudagraph_trees"), "'cudagraphs': True, or mode=\"reduce-overhead\""
    ),
    **dict.fromkeys(("max_autotune_gemm", "max_autotune_pointwise"), "'max_autotune': True"),
    **dict.fromkeys(
        ("trace.enabled", "trace.graph_diagram"),
        "BRAZE_DUMP=dir in the environment writes the files of each stage",
    ),
    "activation_memory_budget": "'memory_budget': a share or bytes",
    "cpp.threads": "'threads': a number",
    "emulate_precision_casts": "'numerics': \"eager\"",
    "freezing": "leave it out: what depends on parameters only is computed once, until they change ('hoist')",
    "guard_filter_fn": "leave it out: all guards are checked, natively",
    "max_fusion_size": "'max_fusion_steps': a number",
}


def make_options(
    *, mode: str | None = None, options: Mapping[str, Any] | None = None, **named: Any
) -> Options:
    """Merge a mode and a dict of options; refuse unknown names with a near miss."""
    if mode is not None and options:
        raise UserError(
            "BZ0002", "give mode= or options=, not both", hints=["put the mode's options into options="]
        )
    if mode is not None and mode not in MODES:
        raise UserError("BZ0002", f"unknown mode {mode!r}", hints=[near(str(mode), MODES)])
    values = {**_from_environment(), **MODES[mode or "default"]}
    if options is not None and not isinstance(options, Mapping):
        raise UserError(
            "BZ0003",
            f"options= takes a dict of names and values, not {type(options).__name__}",
            hints=['options={"verify": 2}'],
        )
    for name, value in (options or {}).items():
        if name not in _FIELDS:
            hint = INDUCTORS.get(name) or near(str(name), _FIELDS)
            raise UserError("BZ0003", f"unknown option {name!r}", hints=[hint])
        values[name] = PARSED[name](value) if name in PARSED else _plain(_FIELDS[name], value)
    if values.get("partition") == "default" and values.get("memory_budget", 1.0) != 1.0:
        raise UserError(
            "BZ0003",
            "memory_budget= needs partition='min_cut'",
            why="partition='default' saves what eager saves, whatever it takes",
        )
    return Options(**{**values, **named})


def _plain(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value of an option that is of its default's type, one of its words, and not below its least."""
    name, default, choices, least = (
        field.name,
        field.default,
        field.metadata["choices"],
        field.metadata["least"],
    )
    wanted = bool if default is None else type(default)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted and not (value is None and default is None):
        raise _refused(name, wanted.__name__, value, f"the default is {default!r}: {field.metadata['help']}")
    if choices and value not in choices:
        raise UserError(
            "BZ0003", f"option {name!r} does not take {value!r}", hints=[near(str(value), choices)]
        )
    if least is not None and not value >= least:
        raise _refused(name, f"{wanted.__name__} from {least} on", value, field.metadata["help"])
    if name in WHOLES:
        _check_memory(name, value)
    return value


_FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def _from_environment() -> dict[str, Any]:
    """The options that environment variables set."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(Options):
        text = os.environ.get(f.metadata["environment"], "") if f.metadata["environment"] else ""
        if not text:
            continue
        switch = type(f.default) is bool
        if not (text in ("0", "1") if switch else text.isdecimal()):
            wanted = "0 or 1" if switch else "a whole number"
            raise UserError(
                "BZ0003",
                f"{f.metadata['environment']} takes {wanted}, not {text!r}",
                hints=["set it so, or not at all"],
            )
        found[f.name] = text == "1" if switch else int(text)
    return found


def told(value: object) -> str:
    """A value as a message shows it: as it is written; of what would fill a page its beginning, of a number how long it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"(a number of {value.bit_length()} bits)"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def near(name: str, known: Any) -> str:
    """A did-you-mean line for an unknown name."""
    found = get_close_matches(name, sorted(known), 1)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(sorted(known))}"
