"""Fixtures that files of this folder ask for by ``pytest.mark.usefixtures``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import braze

# it asserts for several files
pytest.register_assert_rewrite("tests.end_to_end.conformance")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is compiled before a test, and nothing stays."""
    braze.reset()
    yield
    braze.reset()


@pytest.fixture(scope="module")
def own_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are built, not found."""
    folder: Path = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRAZE_CACHE_DIR", str(folder))
        yield
    braze.reset()
