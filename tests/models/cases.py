"""One model of the catalogue: a class of transformers, made tiny, with inputs for any batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from tests.models.exceptions import SINCE

Inputs = Callable[[int], dict[str, Any]]
LENGTH = 11
VOCABULARY = 128


@dataclass(frozen=True)
class Case:
    """``model`` names a class; ``fields`` go to its configuration class."""

    name: str
    model: str
    fields: dict[str, Any]
    inputs: Inputs
    #: the model itself computes something else under a compiler: that is what is compared with
    minds_compilers: bool = False
    #: what a compiler is given is computed in another order: allowed difference
    rounding: float = 0.0
    #: numbers and sizes that only the data tell are symbols of the graph: without that it breaks
    decided_by_data: bool = False

    def missing(self) -> str:
        """Why the installed version cannot be tested with this model, if so."""
        if not hasattr(transformers, self.model):
            return f"transformers {transformers.__version__} has no {self.model}"
        first, why = SINCE.get(self.name, ("0", ""))
        return why if release(transformers.__version__) < release(first) else ""

    def make(self) -> nn.Module:
        """The model with random weights, the same ones each time."""
        torch.manual_seed(0)
        model_class = getattr(transformers, self.model)
        config = model_class.config_class(**self.fields)
        config._attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
        return model_class(config).eval()


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them."""
    return tuple(int(part) for part in version.split(".")[:2])


#: what most configurations call their sizes; those that a class does not know are left alone by it
SIZES: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=VOCABULARY,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
DECODER: dict[str, Any] = dict(SIZES, num_key_value_heads=1, head_dim=16)
EXPERTS: dict[str, Any] = dict(DECODER, moe_intermediate_size=32)


def ids(batch: int, length: int = LENGTH, low: int = 3, high: int = VOCABULARY) -> torch.Tensor:
    """Token ids without special ones, the same for the same shape."""
    return low + torch.arange(batch * length).reshape(batch, length) * 7 % (high - low)


def padding(batch: int, length: int = LENGTH) -> torch.Tensor:
    """A mask in which each second row is shorter."""
    lengths = torch.tensor([length - 4 * (row % 2) for row in range(batch)])
    return (torch.arange(length) < lengths[:, None]).long()


def tokens(batch: int) -> dict[str, Any]:
    return {"input_ids": ids(batch)}


def masked(batch: int) -> dict[str, Any]:
    return {"input_ids": ids(batch), "attention_mask": padding(batch)}


def cached(batch: int) -> dict[str, Any]:
    return {**tokens(batch), "use_cache": True}


def uncached(batch: int) -> dict[str, Any]:
    return {**masked(batch), "use_cache": False}


def labelled(batch: int) -> dict[str, Any]:
    """A loss over the tokens: next-token or masked."""
    return {**masked(batch), "labels": ids(batch)}


def classified(batch: int) -> dict[str, Any]:
    """One label a sentence, of two classes."""
    return {**masked(batch), "labels": torch.arange(batch) % 2}


def translated(batch: int) -> dict[str, Any]:
    return {**masked(batch), "decoder_input_ids": ids(batch, 5)}


def translated_labels(batch: int) -> dict[str, Any]:
    return {**masked(batch), "labels": ids(batch, 5)}


def waves(*shape: int) -> torch.Tensor:
    """Numbers between -1 and 1 with no pattern that a convolution would cancel."""
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7).float().reshape(shape)


def picture(size: int = 32, channels: int = 3) -> Inputs:
    return lambda batch: {"pixel_values": waves(batch, channels, size, size)}


def labelled_picture(size: int = 32) -> Inputs:
    return lambda batch: {"pixel_values": waves(batch, 3, size, size), "labels": torch.arange(batch) % 2}


def video(size: int = 32, frames: int = 4) -> Inputs:
    return lambda batch: {"pixel_values": waves(batch, frames, 3, size, size)}


def sound(samples: int = 1600) -> Inputs:
    return lambda batch: {"input_values": waves(batch, samples)}
