"""How much of its rows a program of a GPU keeps in registers from one walk to the next, as was measured."""

from __future__ import annotations

from collections.abc import Sequence

from braze.support.record import record

#: bytes that one instruction reads
VECTOR = 16


@record
class HeldCut:
    """How programs keep a part of their rows: of so many ``warps``, whose threads have ``registers`` at most, and in them so many ``words`` of the row;
    ``rest``: bytes of it that are read again, at most."""

    warps: int
    registers: int
    words: int
    rest: int


#: bytes of a row that are read again at most, and of one of 16-bit floats whose maximum and powers are taken, which is still in the cache if its program is alone
RESTS, CACHED = 512 << 10, 128 << 10
#: bytes of a row of floats whose maximum and powers are taken that is still in the cache when it is walked again, so that programs which hold nothing have more on their way (softmax of 1,536 rows of 21,845 floats on an H200
#: 88 us, 165 held; of 32,768 75 and 143; but of 65,536 92 and 80, log softmax of 50,257 101 and 82)
CACHED_FLOATS = 128 << 10
#: two programs on each multiprocessor of numbers of 16 bits (log softmax of 50,257 columns in bfloat16 on an H100: 564 us, 744 before)
SIDE_BY_SIDE = HeldCut(16, 64, 20, 92 << 10)
#: one program, with as many threads as there can be (50,257 columns of float32: 1,127 us, 1,434 before; layer norm of 65,536 in bfloat16: 188 and 276)
WIDE_16, WIDE = HeldCut(32, 64, 24, RESTS), HeldCut(32, 64, 32, RESTS)
#: of rows whose mean and variance are taken little is held as long as the cache has the rest, so that more of it is on its way (layer norm of 32,768 columns in
#: bfloat16 on an H100: 180 us, 233 held whole): by two programs side by side rows of so many bytes, by one longer ones that vectors divide
SPREAD_ROW, SPREAD_SIDE = 64 << 10, HeldCut(16, 64, 8, RESTS)
#: by bytes of these at most, and of one number: longer ones are held as others are
SPREAD_CUTS = (
    (128 << 10, 2, HeldCut(32, 64, 8, RESTS)),
    (192 << 10, 4, HeldCut(32, 64, 16, RESTS)),
)
#: the same of rows that begin anywhere, which whole vectors are read of: so many bytes by two programs side by side, floats of as many more with less of them held (layer norm of 21,845 on an H200
#: 74 us, 108 by one program, 24,577 75 and 100, 28,673 77 and 82), longer ones of floats by one
ANYWHERE_ROW, ANYWHERE_SIDE, ANYWHERE = 80 << 10, HeldCut(16, 64, 20, RESTS), HeldCut(32, 64, 16, RESTS)
#: and, of longer ones than ``CACHED_FLOATS``, of those whose maximum and powers are taken (softmax of 33,001 81 us, 166 by one program, 92 held nowhere; of 45,001 85 and 96; but log softmax of 50,257 88 and 80)
ANYWHERE_LONG_ROW, ANYWHERE_POWERS, ANYWHERE_LONG = 160 << 10, 184 << 10, HeldCut(16, 64, 16, RESTS)
#: rows of so many elements that begin anywhere are held to their ends, as whole vectors, by a warp for so many bytes of them (layer norm of 4,097 columns on an
#: H200: 159 us in bfloat16 where half as many take 190, 165 in float32 where twice as many take 196, 368 and 202 held whole); not those of which more than a
#: word is held for each element (a softmax's gradient in float32: 207 us, 187 held whole)
SHORT, OF_A_SHORT_WARP, WORD = range(1024, 8193), 2048, 4
#: of these, rows of so many bytes of floats whose mean and variance are taken keep to so many registers a thread (layer norm on that H200: 8,191 columns of float32 157 us, 213
#: with as many as the compiler takes, 4,097 160 and 165; but 8,191 of bfloat16, whose mean is taken first, 237 and 153; softmaxes spill: 182 and 143)
NARROW_ROW, NARROW = 10 << 10, 64
#: rows that begin anywhere and are summed down their columns, too, are held in four tiles, 32 elements and as many sums a thread, of which each has as many registers as there are, or in five
#: where these hold them (layer norm's backward on an H200: 5,001 of bfloat16 in five tiles of 1,024 117 us, in three of 2,048 138, in five by twice as many threads 131), but of at least so many
#: elements (1,025 in two tiles of 512 120 us, in four of 256 125); floats of up to so many elements in two
LEAST_DOWN = 512
DEEP_DOWN, ALL_REGISTERS = 2048, 255
#: sums of a column that a thread has room for so, and elements of a tile, at most: of more sums it has half as many elements
DOWN_SUMS, DOWN_BLOCK = 2, 2048
#: one whose threads have twice the registers, of rows of which two and more values are read again (a softmax's gradient of 50,257 columns in bfloat16: 430 us,
#: 663 before)
DEEP = HeldCut(16, 128, 48, RESTS)


def cuts_of(length: int, itemsizes: Sequence[int], *, spread: bool, anywhere: bool) -> list[HeldCut]:
    """How a row may be held of which values of so many bytes are read again: the first that leaves little enough is best.

    ``spread``: its mean and variance are taken; ``anywhere``: it begins between vectors.
    """
    if len(itemsizes) > 1:
        return [DEEP]
    narrow = itemsizes[0] == 2
    own = _spread_cuts(length, itemsizes[0], anywhere) if spread else [SIDE_BY_SIDE] if narrow else []
    if anywhere and not spread and not narrow and length * itemsizes[0] <= ANYWHERE_POWERS:
        return [ANYWHERE_LONG, WIDE]
    return [*own, WIDE_16 if narrow else WIDE]


def _spread_cuts(length: int, itemsize: int, anywhere: bool) -> list[HeldCut]:
    """How a row is held whose mean and variance are taken, where that is not as others are."""
    taken = length * itemsize
    if anywhere:
        if taken <= ANYWHERE_ROW:
            return [ANYWHERE_SIDE]
        return [] if itemsize < 4 else [ANYWHERE_LONG if taken <= ANYWHERE_LONG_ROW else ANYWHERE]
    if taken <= SPREAD_ROW:
        return [SPREAD_SIDE]
    if taken % VECTOR:
        return []
    return [cut for longest, least, cut in SPREAD_CUTS if taken <= longest and itemsize >= least][:1]


@record
class DownCut:
    """How rows that are also summed down their columns are held in tiles that they fill: so many of ``block`` elements, by programs of so many ``warps``, ``programs`` on each multiprocessor, with ``stages`` rows on their way."""

    block: int
    tiles: int
    warps: int
    programs: int
    stages: int


#: by their lengths, of rows of which two values of 16 bits are read (layer norm's backward on an H200: 16,384 x 3,072 in bfloat16 77 us, 96 in one tile of 4,096; 8,192 x 5,120 70 and 83; 768 81
#: and 83; 2,560 103 and 144; but seven tiles of 1,024 129 and 107, of 256 105 and 104, of 128 103 and 101)
DOWN_CUTS = {
    640: DownCut(128, 5, 1, 7, 4),
    768: DownCut(256, 3, 2, 7, 3),
    1280: DownCut(256, 5, 2, 5, 3),
    1536: DownCut(512, 3, 2, 4, 4),
    2560: DownCut(512, 5, 4, 3, 4),
    3072: DownCut(1024, 3, 4, 2, 4),
    3584: DownCut(512, 7, 4, 2, 4),
    5120: DownCut(1024, 5, 4, 2, 3),
    6144: DownCut(2048, 3, 8, 1, 4),
    8192: DownCut(2048, 4, 8, 1, 4),
}

#: rows that are enough for each program of a multiprocessor: eight of each on most GPUs
DOWN_ROWS = 1024


def down_cut(length: int | None, itemsizes: Sequence[int], rows: int) -> DownCut | None:
    """How so many rows of which values of so many bytes are read are held in tiles that they fill, where that was measured to be quicker than in one; None elsewhere."""
    cut = None if length is None or list(itemsizes) != [2, 2] else DOWN_CUTS.get(length)
    return cut if cut is not None and rows >= cut.programs * DOWN_ROWS else None
