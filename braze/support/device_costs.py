"""What work costs on a GPU, in the few numbers that choices are made by; those of an H200 where nobody has measured."""

from __future__ import annotations

import math

from braze.support.record import record

#: a measured number is taken as the nearest of these multiples of an H200's, to the power of any whole number: what lies between is a clock's noise, or changes
#: too little to matter, as an H100's cache of 50 MB does
_FINE, _COARSE = math.sqrt(2), 2.0
#: the largest multiple that is believed
_MOST = 64.0


@record
class DeviceCosts:
    """``copied``: bytes a second that a large copy reads and writes together; ``launched``: seconds from the beginning of one small kernel to that of the next, both
    launched before, which is told and decides nothing; ``cache``: bytes that all multiprocessors share, of so many ``cores``."""

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
        return coarse(self.copied / H200.copied, _FINE)

    @property
    def kept(self) -> float:
        """How many times as much as on an H200 a multiprocessor's programs find again in the cache."""
        return coarse((self.cache / self.cores) / (H200.cache / H200.cores), _COARSE)


def coarse(ratio: float, step: float) -> float:
    """The nearest of a few ratios; 1 for what is no ratio.

    >>> [coarse(x, 2.0) for x in (0.75, 1.0, 1.3, 2.1, 0.0)]
    [1.0, 1.0, 1.0, 2.0, 1.0]
    """
    if not 1 / _MOST <= ratio <= _MOST:
        return 1.0
    return float(f"{step ** round(math.log(ratio, step)):.6g}")


#: copies of 126 MB, as `runtime/gpu/device_costs.py` times them in five processes (3.86 to 3.98e12); of a launch what 8 MB take, which `schedule/facts/choices.py` has for it
H200 = DeviceCosts(3.9e12, 2.2e-6, 60 << 20, 132)
