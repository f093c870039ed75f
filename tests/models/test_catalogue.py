"""Every model of the catalogue through capture, and a choice of them through the kernels."""

from __future__ import annotations

import pytest

import braze
from tests.models import language, mixed, newer, pictures_timm, vision, wider
from tests.models.checks import check_capture, check_kernels
from tests.models.exceptions import EXCEPTIONS

TRANSFORMERS = (*language.CASES, *newer.CASES, *vision.CASES, *mixed.CASES, *wider.CASES)
CASES = (*TRANSFORMERS, *pictures_timm.CASES)
KERNELS = (
    "bert-classify deberta-v2 modernbert xlm xmod jetmoe gpt2 llama-labels gemma2 falcon falcon_h1 mamba2 lfm2 t5 bart"
    " vit swinv2 convnextv2 mobilenet_v2 wav2vec2 whisper clip patchtst"
    " resnet18 mobilenetv3_small_050 levit_128s regnety_002 poolformer_s12"
).split()


@pytest.fixture(autouse=True)
def fresh():
    """What one model compiled is not kept for the next."""
    yield
    braze.reset()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_one_graph_and_like_eager(case):
    check_capture(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in KERNELS], ids=lambda case: case.name)
def test_is_as_exact_as_eager(case):
    found = check_kernels(case)
    assert len(found.graphs) == 1
    assert len(found.kernels) > 0


def test_the_catalogue_is_as_large_as_promised():
    """Names are unique; exceptions name models; the classes and the families are many."""
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert set(EXCEPTIONS) <= set(names)
    assert set(KERNELS) <= set(names)
    assert len({case.model for case in TRANSFORMERS}) >= 80
    assert len(pictures_timm.CASES) >= 60
