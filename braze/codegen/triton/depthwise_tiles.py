"""How the template of depthwise convolutions is cut into programs: those worth a measurement, and the one that a rule takes."""

from __future__ import annotations

from braze.products import Depthwise
from braze.schedule.gpu.tile_sizes import power
from braze.support.record import record

#: sums of a thread at most, twice as many of windows of so many elements: what more there are, with elements and weights beside them, its registers do not hold
MOST_SUMS, SMALL_WINDOW = 16, 9
#: channels or columns of a block at least: a sector of memory
LEAST = 8


@record
class Strips:
    """One program has ``rows`` x ``columns`` results of each of so many ``channels``."""

    rows: int
    columns: int
    channels: int
    warps: int

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.rows * self.columns * self.channels // (32 * self.warps)

    def text(self) -> str:
        """A name, by which a choice is kept."""
        return f"{self.rows}x{self.columns}x{self.channels} w{self.warps}"


def parsed_strips(text: str) -> Strips:
    """The cut of a name.

    >>> parsed_strips(Strips(4, 8, 64, 4).text())
    Strips(rows=4, columns=8, channels=64, warps=4)
    """
    sizes, warps = text.split()
    rows, columns, channels = map(int, sizes.split("x"))
    return Strips(rows, columns, channels, int(warps[1:]))


def strips_of(d: Depthwise) -> tuple[Strips, ...]:
    """The cuts worth a measurement, the rule's first."""
    high, wide = d.made
    if d.last:
        most = 64 if d.dtype != "f32" else 32
        whole, side = min(most, power(d.channels)), _fitting(d.channels, most)
        more = most // side  # of few channels columns fill the threads
        cuts = (
            (4, 8, side, 4), (7, 4, side, 4), (2, 8, side, 4), (4, 4, side, 2), (7, 2, side, 2), (14, 2, side, 4), (4, 8, side, 8),
            (7, 8, side, 4), (8, 4, side, 4), (4, 16, side, 8), (1, 8, side, 2),
        )  # fmt: skip
        # the first is what the rule was measured with
        forms = [(4, 8, whole, 4), *((rows, columns * more, *rest) for rows, columns, *rest in cuts)]
    else:
        side = _fitting(wide, 32)
        forms = [
            (rows, side * columns, 16 * (32 // side) * channels // 4, warps)
            for rows in (4, 7, 2)
            for columns, channels, warps in ((1, 4, 4), (2, 2, 4), (1, 2, 4), (1, 1, 1))
        ]
    made = (
        Strips(min(rows, power(high)), min(columns, power(wide)), min(channels, power(d.channels)), warps)
        for rows, columns, channels, warps in forms
    )
    most = MOST_SUMS if d.kernel[0] * d.kernel[1] > SMALL_WINDOW else 2 * MOST_SUMS
    return tuple(dict.fromkeys(s for s in made if s.sums <= most))


def _fitting(extent: int, most: int) -> int:
    """The largest block that is not filled by less than seven eighths, on the whole."""
    side = min(most, power(extent))
    while side > LEAST and -(-extent // side) * side * 7 > extent * 8:
        side //= 2
    return side
