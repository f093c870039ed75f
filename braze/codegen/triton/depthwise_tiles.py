"""How the template of depthwise convolutions is cut into programs: those worth a measurement, and the one that a rule takes."""

from __future__ import annotations

from braze.products import Depthwise
from braze.schedule.kernels import power
from braze.support.record import record


@record
class Strips:
    """One program has ``rows`` x ``columns`` results of each of so many ``channels``."""

    rows: int
    columns: int
    channels: int
    warps: int

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
    across, down = power(wide), power(high)
    if d.last:
        side = min(64 if d.dtype != "f32" else 32, power(d.channels))
        more = 64 // side if d.dtype != "f32" else 32 // side  # of few channels columns fill the threads
        forms = [
            (rows, columns * more, channels, warps)
            for rows, columns, channels, warps in (
                (4, 8, side, 4), (7, 8, side, 4), (2, 8, side, 4), (4, 8, side, 2), (7, 4, side, 2), (4, 4, side, 2), (7, 4, side, 4),
                (4, 16, side, 4), (7, 16, side, 4), (14, 8, side, 4), (4, 4, 2 * side, 4), (1, 8, side, 4),
            )
        ]  # fmt: skip
    else:
        forms = [
            (rows, columns, channels, warps)
            for rows in (4, 7, 2)
            for columns, channels, warps in ((32, 16, 4), (64, 8, 4), (128, 4, 4), (32, 4, 1))
        ]
    made = (
        Strips(min(rows, down), min(columns, across), min(channels, power(d.channels)), warps)
        for rows, columns, channels, warps in forms
    )
    return tuple(dict.fromkeys(made))
