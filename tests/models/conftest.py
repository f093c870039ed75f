"""torchvision may not fit the installed torch; transformers and timm import it."""

from __future__ import annotations

import pytest

from braze.cli.torchvision_ops import make_torchvision_importable

make_torchvision_importable()
pytest.importorskip("transformers").logging.set_verbosity_error()
pytest.importorskip("timm")
