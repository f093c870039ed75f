"""torchvision may not fit the installed torch; transformers and timm import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from braze.cli.torchvision_ops import make_torchvision_importable

make_torchvision_importable()
pytest.importorskip("transformers").logging.set_verbosity_error()
pytest.importorskip("timm")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Small models are quicker without a team of threads, and their sums are in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
