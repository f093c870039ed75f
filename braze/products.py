"""Products of two matrices by shape, the ways in which one can be computed, and which of these to take by the seconds of each."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from braze.support.record import record


class Way(enum.Enum):
    """Who multiplies."""

    OURS = "ours"  # the packed template, what follows done on its tiles
    ATEN = "aten"
    PARTS = "parts"  # the template on parts of the sum, and a kernel that adds them
    ONEDNN = "onednn"  # a linear layer of oneDNN's, which takes either order of the right-hand matrix


@record
class Product:
    """float32 [rows, inner] @ [inner, columns]; whether each matrix lies column by column."""

    rows: int
    inner: int
    columns: int
    left_by_columns: bool = False
    right_by_columns: bool = False


#: what another way must save to be worth a pass of its own for what follows a product
_SAVED = 0.05


def quickest(seconds: Mapping[Way, float]) -> Way:
    """The way to take: ours, unless another is quicker by more than what a fused kernel saves."""
    others = {way: spent for way, spent in seconds.items() if way is not Way.OURS}
    best = min(others, key=others.__getitem__)
    ours = seconds.get(Way.OURS)
    return Way.OURS if ours is not None and ours * (1 - _SAVED) <= others[best] else best


@record
class DeviceProduct:
    """[rows, inner] @ [inner, columns] of one type on a GPU; ``rows`` is None where only a call tells.

    ``batch``: so many of them; 0: one, of matrices that have no such dimension. ``layout``: of a batch, the dimension along which the left and the right
    matrix lie ("kn": both row by row).
    """

    dtype: str
    rows: int | None
    inner: int
    columns: int
    batch: int = 0
    layout: str = ""


@record
class Depthwise:
    """A depthwise convolution of one type on a GPU: pictures [samples, channels, high, wide], their channels last or not, and how windows
    of ``kernel`` go over them. ``samples`` is None where only a call tells."""

    dtype: str
    samples: int | None
    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    last: bool

    @property
    def made(self) -> tuple[int, int]:
        """Windows down and across."""
        rows, columns = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return rows, columns


@record
class Grouped:
    """Rows [rows, inner] of one type on a GPU, each multiplied by one of ``groups`` matrices [inner, columns]; ``rows`` is None where only a call tells.
    ``layout``: as a batch's."""

    dtype: str
    rows: int | None
    groups: int
    inner: int
    columns: int
    layout: str


def takes_grouped(p: Grouped, wanted: bool | None, known: Mapping[Grouped, Way], arch: str) -> bool:
    """Whether a grouped product is our template's: by what was measured, else by a rule. ``wanted``: everywhere (True), nowhere (False)."""
    if wanted is False or p.dtype not in ("f16", "bf16"):
        return False
    if wanted is True:
        return True
    way = known.get(p)
    return grouped_by_rule(p, arch) if way is None else way is Way.OURS


#: rows of a group on the whole, of grouped products that are the template's without a measurement (between, tiles are half empty), places of their sums, columns, and blocks of
#: so many columns that there are at least
RULED_EACH, RULED_SUMS, RULED_RESULTS, RULED_BLOCKS = (
    ((0, 48), (96, 128)),
    (512, 14336),
    (512, 28672),
    (128, 100),
)


def grouped_by_rule(p: Grouped, arch: str) -> bool:
    """Whether a grouped product that nobody has measured is quicker as the template's, as measured on GPUs of one architecture.

    An H200 took 0.41 to 0.97 of the time with ATen's for 8, 32, 64, 128 and 256 matrices, rows spread evenly or by Zipf's law; with 64 rows for each 0.73 to 1.03, with 512 and more
    for each of 8 1.08 to 1.14, and 1.03 for one row, whose sum few programs share (`benchmarks/results/2026-11-28-grouped-template-h200.json`).
    """
    if arch != "sm_90" or p.dtype != "bf16" or not p.rows:
        return False
    width, least = RULED_BLOCKS
    return (
        any(low * p.groups <= p.rows <= high * p.groups for low, high in RULED_EACH)
        and RULED_SUMS[0] <= p.inner <= RULED_SUMS[1]
        and RULED_RESULTS[0] <= p.columns <= RULED_RESULTS[1]
        and min(p.groups, p.rows) * -(-p.columns // width) >= least
    )


#: rows and columns of the largest window of which a kernel has all products in its text
LARGEST_WINDOW = 7


def takes_depthwise(d: Depthwise, wanted: bool | None, known: Mapping[Depthwise, Way], arch: str) -> bool:
    """Whether a depthwise convolution is our template's: by what was measured, else by a rule. ``wanted``: everywhere (True), nowhere (False)."""
    if wanted is False or max(d.kernel) > LARGEST_WINDOW or d.dtype not in ("f32", "f16", "bf16"):
        return False
    if wanted is True:
        return True
    way = known.get(d)
    return depthwise_by_rule(d, arch) if way is None else way is Way.OURS


#: pictures at least, channels, and rows and columns of depthwise convolutions that are the template's without a measurement
RULED_PICTURES, RULED_CHANNELS, RULED_SIZE = 64, (32, 960), (7, 112)
#: rows of these under windows of seven, of which more took as long as ATen's
RULED_WIDEST = 28


def depthwise_by_rule(d: Depthwise, arch: str) -> bool:
    """Whether a depthwise convolution that nobody has measured is quicker as the template's, as measured on GPUs of one architecture.

    With a bias and hardswish of channels-last pictures in bfloat16 an H200 took 0.5 to 0.92 of the time with ATen's, and of windows with gaps, which cuDNN leaves to ATen, a thirtieth
    (`benchmarks/results/2026-11-28-depthwise-cuts-h200.json`); other types and most sizes of few pictures were not measured.
    """
    (down, across), (high, wide) = d.kernel, d.size
    least, most = RULED_CHANNELS
    return (
        arch == "sm_90"
        and d.dtype == "bf16"
        and d.last
        and down == across
        and (down in (3, 5) or (down == 7 and high <= RULED_WIDEST))
        and (d.dilation == (1, 1) or (d.dilation == (2, 2) and down == 3 and d.stride == (1, 1)))
        and d.stride in ((1, 1), (2, 2))
        and (d.samples or 0) >= RULED_PICTURES
        and least <= d.channels <= most
        and all(RULED_SIZE[0] <= n <= RULED_SIZE[1] for n in (high, wide))
    )


#: rows of float32 up to which the template multiplies: its products of more would need the tensor cores' TensorFloat-32
FEW_ROWS_F32 = 8


#: rows up to which a GPU's product is the template's without a measurement, the least columns, and places of a sum
RULED_ROWS, RULED_COLUMNS, RULED_INNER = 16, 512, (128, 14336)


#: bytes of a product that is not to live beside its copy without padding
LARGE_RESULT = 32 << 20


@record
class BatchClass:
    """Batches of products whose matrices lie so: at least so many, and the least and most rows, places of the sum, and columns of each."""

    layout: str
    batch: int
    rows: tuple[int, int]
    inner: tuple[int, int]
    columns: tuple[int, int]

    def has(self, p: DeviceProduct) -> bool:
        """Whether a product is of the class; what lies between measured sizes is, where rows of it are whole vectors."""
        sizes = ((p.rows or 0, self.rows), (p.inner, self.inner), (p.columns, self.columns))
        within = all(least <= n <= most for n, (least, most) in sizes)
        return (
            within
            and p.layout == self.layout
            and p.batch >= self.batch
            and not (p.inner % 8 or p.columns % 8)
        )


#: batches that are the template's without a measurement where elementwise work follows: on an H100 it took, cut by the rule, 0.29 to 0.86 of
#: ATen's time for both (`benchmarks/results/2026-11-26-templates-h100.json`). The corners are sizes that were measured
RULED_BATCHES = (
    BatchClass("kk", 8, (200, 2048), (64, 128), (200, 2048)),
    BatchClass("kk", 64, (16, 16), (128, 128), (2048, 2048)),
    BatchClass("kn", 96, (200, 512), (200, 512), (64, 64)),
    BatchClass("kn", 64, (32, 128), (32, 128), (32, 128)),
    BatchClass("kn", 8, (64, 64), (1024, 1024), (4096, 4096)),
)


def takes_template(
    product: DeviceProduct, wanted: bool | None, known: Mapping[DeviceProduct, Way], ruled: bool = False
) -> bool:
    """Whether a GPU's product is the template's: by what was measured, else by a rule, ``ruled`` its answer. ``wanted``: everywhere (True), nowhere (False)."""
    if wanted is False or not may_take_template(product):
        return False
    if wanted is True:
        return True
    way = known.get(product)
    return ruled if way is None else way in (Way.OURS, Way.PARTS)


def pays_by_rule(product: DeviceProduct, most: int | None, arch: str) -> bool:
    """Whether a product of at most so many rows is quicker as the template's, as measured on GPUs of one architecture.

    So few rows are multiplied in the time that the right-hand matrix takes to be read, which the template does with less before and
    after. The matrix lies by columns, as a linear layer's weight does. Of batches those of some classes are, where elementwise work follows;
    and large products whose rows are no whole vectors.
    """
    least, longest = RULED_INNER
    if writes_broken_rows(product, arch):
        return True
    if arch != "sm_90" or product.dtype not in ("f16", "bf16"):
        return False
    if product.batch:
        return any(c.has(product) for c in RULED_BATCHES)
    return (
        most is not None
        and most <= RULED_ROWS
        and product.columns >= RULED_COLUMNS
        and least <= product.inner <= longest
    )


def writes_broken_rows(product: DeviceProduct, arch: str) -> bool:
    """Whether a product of matrices whose rows begin at whole vectors has large results whose rows do not: the template's, as measured on one architecture.

    The tensor cores of a library would have to write padded rows, which are copied then. With that copy, made a part at a time, an H100 took 1.4 to 1.85
    times as long as the template, which writes results as they are to lie (`benchmarks/results/2026-11-27-broken-rows-h100.json`).
    """
    return (
        arch == "sm_90"
        and product.dtype in ("f16", "bf16")
        and not product.batch
        and product.inner % 8 == 0
        and product.columns % 8 != 0
        and product.rows is not None
        and 2 * product.rows * product.columns > LARGE_RESULT
    )


def may_take_template(product: DeviceProduct) -> bool:
    """Whether the GPU's template can compute a product at all, and no worse than eager does."""
    if product.dtype == "f32":
        return product.rows is not None and product.rows <= FEW_ROWS_F32
    return product.dtype in ("f16", "bf16")


#: rows and columns of a program's results, of a product with few of them
TILE = 64
#: places of the sum in each part at least, and parts at most
LEAST_PART, MOST_PARTS = 256, 32


def parts_of(product: DeviceProduct, cores: int) -> int:
    """In how many parts the sum of a product is worth cutting on a GPU of so many multiprocessors; 1: in none.

    Few tiles of results leave multiprocessors idle, each for the whole of a long sum. Parts are equal, so that none needs a mask.
    """
    if product.batch or product.rows is None or product.dtype == "f32":
        return 1
    tiles = -(-product.rows // TILE) * -(-product.columns // TILE)
    parts = 1
    while (
        2 * parts <= MOST_PARTS
        and parts * tiles < cores
        and product.inner % (2 * parts) == 0
        and product.inner // (2 * parts) >= LEAST_PART
    ):
        parts *= 2
    return parts
