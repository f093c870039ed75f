"""Builds the C extension. Where that fails, the wheel still works on braze's pure-Python core."""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("braze/native/src")


def write_vocabulary() -> None:
    """The words that Python and C share, as C reads them."""
    text = runpy.run_path("braze/native/vocabulary.py")["c_header"]()
    header = SOURCES / "vocabulary.h"
    if not header.exists() or header.read_text() != text:
        header.write_text(text)


def extensions() -> list[Extension]:
    """The extension, on the interpreters it knows."""
    supported = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 13)
    if not supported or os.name != "posix" or os.environ.get("BRAZE_NO_EXTENSION"):
        return []
    write_vocabulary()
    return [
        Extension(
            "braze.native._native",
            sources=sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=[
                "-std=gnu11",
                "-O2",
                "-fvisibility=hidden",
                "-Wall",
                "-Wno-missing-field-initializers",
            ],
            libraries=["dl", "m"] if sys.platform.startswith("linux") else [],
            optional=True,
        )
    ]


setup(ext_modules=extensions())
