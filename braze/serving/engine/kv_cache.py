"""The paged cache: which blocks are whose, where a token goes, and the tensors themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.serving.engine.attention.operators import KVCache, layer_key
from braze.serving.engine.models.decoder import CacheShape
from braze.support.errors import InternalError


class BlockPool:
    """Blocks by number; each is free or someone's. The block given back last is taken first, while caches still hold it."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._taken = bytearray(blocks)

    @property
    def free(self) -> int:
        """How many blocks nobody has."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many blocks somebody has."""
        return self.blocks - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """So many blocks, or None where there are fewer; none are taken then."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._taken[block] = 1
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Blocks are free again. Raises BZ9111 for one that is free already."""
        for block in reversed(blocks):
            if not self._taken[block]:
                raise InternalError("BZ9111", f"block {block} of the cache was given back twice")
            self._taken[block] = 0
            self._free.append(block)


def blocks_for(tokens: int, block_size: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // block_size)


def block_bytes(shape: CacheShape, layers: int, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block, in all layers."""
    return shape.numbers() * layers * block_size * dtype.itemsize


def allocate(
    shape: CacheShape,
    layers: int,
    blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    requests: int = 0,
) -> dict[str, KVCache]:
    """The caches of all layers, by the names under which attention looks for them; zeros. ``requests``: of a step, at most."""
    found = {}
    # layers run one after another, and leave it zeros
    arrivals = torch.zeros(requests * shape.heads, dtype=torch.int32, device=device)
    for layer in range(layers):
        key = torch.zeros(blocks, block_size, shape.heads, shape.key_dim, dtype=dtype, device=device)
        if shape.latent:
            value = key[..., : shape.value_dim]
        else:
            value = torch.zeros(blocks, block_size, shape.heads, shape.value_dim, dtype=dtype, device=device)
        found[layer_key(layer)] = KVCache(key, value, shape.latent, arrivals)
    return found
