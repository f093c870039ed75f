"""The loop IR in one page.

::

    LoopProgram = buffers, steps in program order, inputs, outputs
    step        = LoopNest | ExternCall | TemplateCall
    LoopNest    = axes x reduce_axes, reductions over them, stores

A ``LoopNest`` without reductions evaluates its stores at every point of ``axes``. With
reductions, each ``Reduction.value`` is evaluated at every point of ``axes x reduce_axes`` and
combined over ``reduce_axes``; the stores are then evaluated at every point of ``axes`` and refer to
the results with ``Op.REDUCED``. All indices are flat element offsets into a buffer's storage.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any

from braze.support.errors import Origin
from braze.support.nested import every
from braze.support.record import interned, record
from braze.symbolic.expr import ZERO, Expr, Symbol, linear


class DType(enum.Enum):
    """Element types: (name, bytes)."""

    BOOL = ("bool", 1)
    U8 = ("u8", 1)
    I8 = ("i8", 1)
    I16 = ("i16", 2)
    I32 = ("i32", 4)
    I64 = ("i64", 8)
    F16 = ("f16", 2)
    BF16 = ("bf16", 2)
    F32 = ("f32", 4)
    F64 = ("f64", 8)
    # opaque: pass through extern calls and aliases, never computed on by a LoopNest
    C32 = ("c32", 4)
    C64 = ("c64", 8)
    C128 = ("c128", 16)
    U16 = ("u16", 2)
    U32 = ("u32", 4)
    U64 = ("u64", 8)
    F8E4M3 = ("f8e4m3", 1)
    F8E5M2 = ("f8e5m2", 1)
    F8E4M3FNUZ = ("f8e4m3fnuz", 1)
    F8E5M2FNUZ = ("f8e5m2fnuz", 1)
    F8E8M0 = ("f8e8m0", 1)

    def __init__(self, label: str, itemsize: int) -> None:
        self.label = label
        self.itemsize = itemsize

    __hash__ = object.__hash__  # an Enum's own is Python code, and each node that is looked up hashes two

    @property
    def is_float(self) -> bool:
        return self.label in ("f16", "bf16", "f32", "f64")

    @property
    def is_integer(self) -> bool:
        return self.label in ("u8", "i8", "i16", "i32", "i64")

    @property
    def is_computable(self) -> bool:
        """Whether loops may compute with it (opaque types only pass through)."""
        return self.is_float or self.is_integer or self.label == "bool"

    @property
    def stored(self) -> DType:
        """The type that loops load and store in memory of this one: floats of eight bits are bytes to them."""
        return DType.U8 if self.label in ("f8e4m3", "f8e5m2") else self


class Op(enum.Enum):
    """Scalar operations. Floats follow IEEE and eager's special values; integers wrap."""

    # leaves
    LOAD = "load"  # attr=(buffer, Expr); args[k] is the value of the index symbol `indirect(k)`
    CONST = "const"  # attr=Python number
    INDEX = "index"  # attr=Expr: the value of an index expression, dtype i64
    REDUCED = "reduced"  # attr=k: result k of this nest's reductions (see Reduction.results)
    RANDOM = "random"  # attr="uniform"|"normal"; args=(seed, offset): Philox-4x32-10
    # conversions
    # to Node.dtype: float->int cuts off (dtypes.truncated_to says what is beyond), x->bool is x != 0; attr=ROUNDING: to a half
    # type, as eager rounds what an operation gives; schedule/rewrites/roundings.py leaves it out where nobody sees it
    CAST = "cast"
    BITCAST = "bitcast"
    # arithmetic
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # true division, floats only
    FLOORDIV = "floordiv"  # rounds to minus infinity, ints and floats
    TRUNCDIV = "truncdiv"
    REMAINDER = "remainder"  # sign of the divisor (Python's %)
    FMOD = "fmod"  # sign of the dividend (C's)
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"
    MAXIMUM = "maximum"  # a nan on either side gives nan
    MINIMUM = "minimum"
    FMA = "fma"  # only where the lowering asks for it
    POW = "pow"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ATAN2 = "atan2"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    ERFC = "erfc"
    SIGMOID = "sigmoid"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"  # half to even
    HYPOT = "hypot"
    COPYSIGN = "copysign"
    # tests: result is bool
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    ISNAN = "isnan"
    ISINF = "isinf"
    SIGNBIT = "signbit"
    # bits and logic (bool operands: logic)
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    SHL = "shl"
    SHR = "shr"  # arithmetic for signed
    # choice
    WHERE = "where"  # args=(cond, then, else): all three are evaluated
    # args=(i,), attr=n: i, known to be in 0 <= i < n; elsewhere an IndexError, and never a read out of bounds
    CHECK_INDEX = "check_index"
    MASKED = "masked"  # args=(cond, value, other): loads inside value happen only where cond holds

    __hash__ = object.__hash__  # as of DType


#: marks a cast that nobody has asked for
ROUNDING = "rounding"


@interned
class Node:
    """One scalar expression. ``args`` are nodes; ``attr`` is hashable data whose meaning is the op's."""

    op: Op
    dtype: DType
    args: tuple[Node, ...] = ()
    attr: Any = None


@interned
class Axis:
    """A loop: ``symbol`` runs over 0 <= symbol < extent."""

    symbol: Symbol
    extent: Expr


class ReduceKind(enum.Enum):
    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # nan wins
    MIN = "min"
    ANY = "any"
    ALL = "all"
    ARGMAX = (
        "argmax"  # first index of the maximum; nan wins; result i64, index over the flattened reduce domain
    )
    ARGMIN = "argmin"
    WELFORD = "welford"  # two results: mean, sum of squared deviations (m2)
    ONLINE_SOFTMAX = "online_softmax"  # two results: maximum, sum of exp(x - maximum)

    __hash__ = object.__hash__  # as of DType

    @property
    def results(self) -> int:
        """How many results it gives."""
        return 2 if self in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX) else 1

    @property
    def finds_place(self) -> bool:
        """Whether the result is where the extreme lies, not the extreme."""
        return self in (ReduceKind.ARGMAX, ReduceKind.ARGMIN)

    @property
    def extreme(self) -> ReduceKind | None:
        """MAX or MIN, of kinds that look for one."""
        if self in (ReduceKind.MAX, ReduceKind.ARGMAX):
            return ReduceKind.MAX
        return ReduceKind.MIN if self in (ReduceKind.MIN, ReduceKind.ARGMIN) else None


@record
class Reduction:
    """``value`` combined over the nest's reduce axes, accumulated in ``dtype``."""

    kind: ReduceKind
    dtype: DType
    value: Node

    @property
    def results(self) -> tuple[DType, ...]:
        """The types of the results."""
        return (DType.I64 if self.kind.finds_place else self.dtype,) * self.kind.results


class StoreMode(enum.Enum):
    PLAIN = "plain"
    OVER = "over"  # over some elements of a buffer that an earlier step has written; of several at one place any stays
    ADD = "add"  # atomic where several points may hit one element


@record
class Store:
    """``buffer[index] = value`` at every point; ``args[k]`` is the value of `indirect(k)` in the index.

    On a GPU nothing is stored at a place that does not exist (``CHECK_INDEX``), and the kernel stops the program.
    """

    buffer: str
    index: Expr
    value: Node
    mode: StoreMode = StoreMode.PLAIN
    args: tuple[Node, ...] = ()


class BufferKind(enum.Enum):
    INPUT = "input"
    CONSTANT = "constant"  # a parameter or a lifted constant: same storage on every call, data may change
    TEMPORARY = "temporary"
    OUTPUT = "output"  # allocated per call, escapes to the user


@record
class Buffer:
    """Named storage with a layout, sizes and strides in elements.

    ``offset``: element offset of an input's data in its storage is already in its data pointer, so it
    is always 0 for loads; it is kept for views that are rebuilt.
    """

    name: str
    dtype: DType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str  # "cpu" | "cuda:0"
    kind: BufferKind
    origin: Origin | None = None

    @property
    def last(self) -> Expr:
        """The place of its last element, counted from its first, if it has elements."""
        return linear([size - 1 for size in self.sizes], self.strides, ZERO)

    def whole(self) -> BufferView:
        """The view of all of it."""
        return BufferView(self.name, self.sizes, self.strides, ZERO, self.dtype)


@record
class LoopNest:
    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...]
    device: str
    ops: tuple[str, ...] = ()  # names of the graph's ops it computes, for kernel names
    origin: Origin | None = None


@record
class BufferView:
    """A strided window on a buffer, as an argument of an extern or template call, or an output."""

    buffer: str
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: DType


def views_in(values: object) -> list[BufferView]:
    """Every window on a buffer in nested tuples of arguments."""
    return every(BufferView, values)


@record
class MadeSize:
    """A size symbol that a call makes known: size ``dim`` of output ``output``, or (dim -1) the number that it returns."""

    symbol: Symbol
    output: int
    dim: int


@record
class Condition:
    """A question about sizes: ``op`` is "eq" "ne" "lt" "le" "gt" "ge" of two Exprs, or "and" "or" "not" of Conditions."""

    op: str
    args: tuple[Expr | Condition, ...]

    def symbols(self) -> frozenset[Symbol]:
        """Every size symbol in it."""
        return frozenset().union(*(a.symbols() for a in self.args))

    def __str__(self) -> str:
        if self.op == "not":
            return f"(not {self.args[0]})"
        return f"({f' {RELATIONS.get(self.op, self.op)} '.join(map(str, self.args))})"


RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@record
class SizeCheck:
    """What must hold of the sizes when the program runs; checked as soon as the symbols in it are known."""

    condition: Condition
    message: str


@record
class ExternCall:
    """An ATen call: ``target`` is ``"aten.mm.default"``.

    ``args``/``kwargs`` are (nested tuples of) BufferView, Expr (a size), SymbolicScalar or plain
    constants. ``outputs``: the buffers that the results become, in order ("" where a result is unused).
    ``mutates``: the buffers that it writes. ``out_variant``: overload with ``out=`` that may write
    straight into the planned outputs, or "".
    """

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    out_variant: str = ""
    device: str = "cpu"
    ops: tuple[str, ...] = ()
    origin: Origin | None = None
    aliases: tuple[str, ...] = ()  # buffers whose storage the outputs may share
    makes: tuple[MadeSize, ...] = ()  # sizes that nobody knows before the call

    @property
    def given(self) -> tuple[Any, ...]:
        """All arguments, those by name too."""
        return (*self.args, *(value for _, value in self.kwargs))


@record
class Window:
    """How windows go over a picture, down and across: their steps, the zeros around the picture, and the steps within a window;
    ``last``: channels lie beside each other."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    last: bool


@record
class TemplateCall:
    """A kernel written as a template: ``kind`` "gemm", "grouped" or "depthwise".

    For "gemm": ``args = (a, b)`` views [..., M, K] and [K, N] (b may be the transposed view of a linear
    weight); the single output buffer is [M, N] row-major; ``epilogue`` maps ``Op.REDUCED`` attr 0 (the
    accumulated element, f32) at axes (m, n) to the stored value. ``constant_b`` says that b is a
    CONSTANT buffer, so that a packed copy may be kept, keyed by the tensor's version.
    On a GPU there may be a third axis, before the others: then the views are [B, M, K] and [B, K, N], one product for each.
    Further ``args`` are right-hand matrices of the same sizes: REDUCED attr k is the product with the k-th of them.
    ``prologue``: loops over the axis m, and the row k, that compute the buffer of ``a`` first; what they write nobody else sees.

    For "grouped", on a GPU, as "gemm" with ``args = (a, b, ends)`` views [M, K], [E, K, N] and [E] of int32, further right-hand matrices before ``ends``: of
    the rows of ``a`` those up to ``ends[0]`` are multiplied by the first of the matrices, those from there up to ``ends[1]`` by the second, and so on; what
    becomes of rows behind the last end is not said.

    For "depthwise", on a GPU: ``args = (pictures, weights)`` views [N, C, H, W] and [C, KH, KW], moved as ``window`` says; axes over
    [N, C, OH, OW], the channels last where they lie so; REDUCED attr 0 is the sum of a window's products.
    """

    name: str
    kind: str
    args: tuple[BufferView, ...]
    axes: tuple[Axis, ...]
    epilogue: tuple[Store, ...]
    constant_b: bool
    device: str = "cpu"
    ops: tuple[str, ...] = ()
    origin: Origin | None = None
    prologue: tuple[LoopNest, ...] = ()
    window: Window | None = None

    @property
    def batch(self) -> Axis | None:
        """The axis of products of the same sizes, if it is such."""
        return self.axes[0] if len(self.axes) == 3 else None

    @property
    def rights(self) -> tuple[BufferView, ...]:
        """What the left matrix is multiplied by."""
        return self.args[1:-1] if self.kind == "grouped" else self.args[1:]

    @property
    def inside(self) -> frozenset[str]:
        """The buffers that its prologue writes, which only it reads."""
        return frozenset(s.buffer for nest in self.prologue for s in nest.stores)


Step = LoopNest | ExternCall | TemplateCall


@record
class SizeSource:
    """How the host finds a size symbol: size ``dim`` of input ``input``, or (dim -1) input is the int itself."""

    symbol: Symbol
    input: int
    dim: int


@record
class LoopProgram:
    """Straight-line steps over named buffers.

    ``inputs``: per graph input the buffer's name, or "" for a symbolic int. ``outputs``: what the host
    returns, in order: a BufferView, an Expr, or a constant (None, a Python number). An output view of an
    input buffer is returned as an alias. ``mutated``: input buffers written by the steps. ``attributes``: tensors
    that the graph holds itself, by name; they follow the graph's inputs as the last of ``inputs``. ``checks``: what must
    hold of sizes that only the data tell. ``owned``: input buffers that nobody else holds, which a call that consumes its
    inputs frees. ``again``: (name, input): a further name of an input's memory as of one write to it, in the order of the
    writes; these stand behind ``attributes`` in ``inputs``. ``renewed``: (output, input): an output that is an input's new
    contents, which nobody else gets: it may be written over the old ones. ``rounds``: it has casts marked ROUNDING, which kernels may leave out.
    ``for_errors``: buffers that nobody reads; what makes them runs for the error that it may raise.
    ``locked``: outputs that stay views of what a call makes, to which autograd lets nobody write; others are no views.
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Hashable, ...]
    mutated: tuple[str, ...] = ()
    sizes: tuple[SizeSource, ...] = ()
    attributes: tuple[str, ...] = ()
    checks: tuple[SizeCheck, ...] = ()
    owned: tuple[str, ...] = ()
    again: tuple[tuple[str, str], ...] = ()
    renewed: tuple[tuple[int, str], ...] = ()
    rounds: bool = False
    locked: tuple[int, ...] = ()
    for_errors: tuple[str, ...] = ()

    @property
    def made(self) -> tuple[Symbol, ...]:
        """The size symbols that calls make known, each once, in order."""
        found = [m.symbol for s in self.steps if isinstance(s, ExternCall) for m in s.makes]
        return tuple(dict.fromkeys(found))

    @property
    def device(self) -> str:
        """Where the program mainly runs: on the GPU as soon as it has buffers there."""
        return next((b.device for b in self.buffers if b.device != "cpu"), "cpu")

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError where there is none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)
