"""What work costs on a GPU, in the few numbers that choices are made by; those of an H200 where nobody has measured."""

from __future__ import annotations

import math

from braze.support.record import record

#: measured numbers are taken as the nearest of these multiples of an H200's: what lies between is a clock's noise, and is to change no choice
_STEP = math.sqrt(2)
#: the largest multiple that is believed
_MOST = 64.0


@record
class DeviceCosts:
    """``copied``: bytes a second that a large copy reads and writes together; ``launched``: seconds from one small kernel that the host launches to the next; ``cache``:
    bytes that all multiprocessors share, of so many ``cores``."""

    copied: float
    launched: float
    cache: int
    cores: int

    def said(self) -> str:
        """As one would tell them."""
        return (
            f"copies {self.copied / 1e12:.2f} TB/s, a launch {self.launched * 1e6:.1f} us, "
            f"{self.cache / 2**20:.0f} MB of cache"
        )

    @property
    def speed(self) -> float:
        """How many times as fast as an H200's the memory is."""
        return coarse(self.copied / H200.copied)

    @property
    def delay(self) -> float:
        """How many times as long as on a machine with an H200 a launch takes the host."""
        return coarse(self.launched / H200.launched)

    @property
    def kept(self) -> float:
        """How many times as much as on an H200 a multiprocessor's programs find again in the cache."""
        return coarse((self.cache / self.cores) / (H200.cache / H200.cores))


def coarse(ratio: float) -> float:
    """The nearest of a few ratios; 1 for what is no ratio.

    >>> [coarse(x) for x in (0.9, 1.0, 1.15, 2.1, 0.0)]
    [1.0, 1.0, 1.0, 2.0, 1.0]
    """
    if not 1 / _MOST <= ratio <= _MOST:
        return 1.0
    return float(f"{_STEP ** round(math.log(ratio, _STEP)):.6g}")


#: copies of 100 MB, and small kernels one after the other, as `runtime/device_costs.py` times them
H200 = DeviceCosts(4.2e12, 4.0e-6, 50 << 20, 132)
