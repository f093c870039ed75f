"""torchvision may not fit the installed torch; transformers and timm import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braze.cli.torchvision_ops import make_torchvision_importable
from tests.helpers import threads

make_torchvision_importable()
pytest.importorskip("transformers").logging.set_verbosity_error()
pytest.importorskip("timm")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Small models are quicker without a team of threads, and their sums are in one order."""
    with threads(1):
        yield
