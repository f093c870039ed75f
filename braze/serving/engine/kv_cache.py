"""The paged cache: which blocks are whose, which hold what others begin with, and the tensors themselves."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import sha256

import torch

from braze.serving.engine.attention.operators import KVCache, layer_key
from braze.serving.engine.models.decoder import CacheShape
from braze.serving.engine.requests import Request
from braze.support.errors import InternalError


class BlockPool:
    """Blocks by number, each with as many holders as share it. What a full block holds may be known by the key of its tokens and all before them:
    then it can be found again, also after its last holder gave it back, until it is wanted for something else.

    Of the free ones those that nobody could find again are taken first, the one given back last before the others, while caches still hold it; then
    the known one that has been free for longest. Blocks given back together are taken from their end, so that what is left of them is a beginning.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._holders = [0] * blocks
        #: known blocks by their keys, and the keys of blocks; those that nobody holds, the longest free first
        self._known: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._left: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """How many blocks nobody has."""
        return len(self._free) + len(self._left)

    @property
    def used(self) -> int:
        """How many blocks somebody has."""
        return self.blocks - self.free

    @property
    def known(self) -> int:
        """How many blocks could be found again."""
        return len(self._known)

    def holders(self, block: int) -> int:
        """How many have a block."""
        return self._holders[block]

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of these keys, up to the first that is not known. Nobody holds them the more for it."""
        found = []
        for key in keys:
            block = self._known.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, count: int, shared: Sequence[int] = ()) -> list[int] | None:
        """``shared``, held by one more each, and so many blocks of one's own; None where there are fewer, and nothing is taken then."""
        if count + sum(1 for block in shared if not self._holders[block]) > self.free:
            return None
        for block in shared:
            if not self._holders[block]:
                del self._left[block]
            self._holders[block] += 1
        taken = [self._free.pop() if self._free else self._forgotten() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        return [*shared, *taken]

    def know(self, block: int, key: bytes) -> None:
        """A held block is full, and holds what this key stands for; nothing where another block is known by it."""
        if key not in self._known and block not in self._keys:
            self._known[key], self._keys[block] = block, key

    def give_back(self, blocks: Sequence[int]) -> None:
        """One holder less. Raises BZ9111 for a block that is free already."""
        for block in reversed(blocks):
            if not self._holders[block]:
                raise InternalError("BZ9111", f"block {block} of the cache was given back twice")
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._keys:
                self._left[block] = None
            else:
                self._free.append(block)

    def _forgotten(self) -> int:
        """The known block that has been free for longest; it can be found no more."""
        block, _ = self._left.popitem(last=False)
        del self._known[self._keys.pop(block)]
        return block


class Prefixes:
    """The keys of a request's full blocks: each stands for the block's tokens and all before them."""

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self._begin = b""

    def forget(self) -> None:
        """Requests that come from now on find no block that is known: it was filled by other weights."""
        self._begin = sha256(self._begin).digest()

    def keys(self, request: Request, blocks: int) -> list[bytes]:
        """The keys of its first blocks, which its tokens fill."""
        kept, tokens, size = request.keys, request.tokens, self.size
        while len(kept) < blocks:
            at = len(kept) * size
            text = array("q", tokens[at : at + size]).tobytes()
            kept.append(sha256((kept[-1] if kept else self._begin) + text).digest())
        return kept[:blocks]


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
