"""Facts about the devices that code is generated for."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from braze.support.device_costs import H200, DeviceCosts
from braze.support.record import interned


@interned
class Target:
    """What a code generator must know of a device.

    ``vector_bytes`` is the width of a SIMD register (CPU).
    """

    kind: str  # "cpu" | "cuda"
    arch: str  # "x86-64-avx512", "x86-64-avx2", "aarch64-neon", "sm_90", ...
    features: tuple[str, ...] = ()
    vector_bytes: int = 16
    cores: int = 1
    vendor: str = ""  # of a processor: "GenuineIntel", "AuthenticAMD"
    costs: DeviceCosts = H200  # of a GPU


@cache
def cpu_target() -> Target:
    """This machine's processor, read from /proc/cpuinfo, never probed by compiling."""
    flags, vendor = frozenset(_cpu_line("flags", "Features").split()), _cpu_line("vendor_id")
    machine = platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if machine in ("aarch64", "arm64"):
        return Target("cpu", "aarch64-neon", ("neon",), 16, cores)
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags
    wanted = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "amx_bf16")
    features = tuple(f for f in wanted if f in flags and (avx512 or not f.startswith(("avx512", "amx"))))
    if avx512:
        features += ("gather",) if _gathers_are_quick(vendor) else ()
        return Target("cpu", "x86-64-avx512", features, 64, cores, vendor=vendor)
    if {"avx2", "fma"} <= flags:
        return Target("cpu", "x86-64-avx2", features, 32, cores, vendor=vendor)
    return Target("cpu", "x86-64-sse2", features, 16, cores, vendor=vendor)


def cuda_target(capability: tuple[int, int], cores: int, costs: DeviceCosts = H200) -> Target:
    """A GPU of a compute capability (9, 0), with its number of multiprocessors and what was measured on it."""
    major, minor = capability
    return Target("cuda", f"sm_{major}{minor}", (), 16, cores, costs=costs)


def _gathers_are_quick(vendor: str) -> bool:
    """Whether one instruction reads lanes from anywhere faster than an instruction for each: on processors on which that was
    measured, where microcode does not slow it down lest it leak what others hold."""
    if vendor != "GenuineIntel":
        return False
    try:
        told = Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling").read_text()
    except OSError:
        return False
    return told.startswith(("Not affected", "Vulnerable"))


def _cpu_line(*names: str) -> str:
    """What /proc/cpuinfo says under one of these names; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        if line.startswith(names):
            return line.partition(":")[2].strip()
    return ""
