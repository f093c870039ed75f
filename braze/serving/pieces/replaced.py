"""Whether a module still has the tensors, and these the memory, that its recordings were made with.

A recording reads the memory of a module's tensors and asks the module for none of them again. So they are held as long as the recording is, and looked
through before each replay: parameters, buffers, attributes that are tensors or lists, tuples and dicts of tensors, and the modules inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import getitem, is_
from typing import Any

import torch
from torch import nn

from braze import native


class Tensors:
    """All tensors of a module as they are now, by where they are found. It holds them."""

    def __init__(self, module: nn.Module) -> None:
        rows = list(_found(module))
        self.names = [name for name, *_ in rows]
        self._owners = [owner for _, owner, _, _ in rows]
        self._keys = [key for _, _, key, _ in rows]
        self._values = [value for *_, value in rows]
        placed = [(name, x) for name, *_, x in rows if has_address(x)]
        self._placed, self._tensors = [name for name, _ in placed], [x for _, x in placed]
        self._addresses = list(map(native.data_ptr, self._tensors))

    def replaced(self) -> str:
        """Which of them is another one now, or lies elsewhere; empty where none is."""
        try:
            same = all(map(is_, map(getitem, self._owners, self._keys), self._values))
        except (KeyError, IndexError):  # it is not there any more
            same = False
        if same and list(map(native.data_ptr, self._tensors)) == self._addresses:
            return ""
        return next(self._which(), "a tensor")

    def _which(self) -> Iterator[str]:
        for name, owner, key, value in zip(self.names, self._owners, self._keys, self._values, strict=True):
            try:
                if owner[key] is not value:
                    yield name
            except (KeyError, IndexError):
                yield name
        for name, x, address in zip(self._placed, self._tensors, self._addresses, strict=True):
            if native.data_ptr(x) != address:
                yield name


def has_address(x: Any) -> bool:
    """Whether it is a tensor that lies in one piece of memory."""
    return isinstance(x, torch.Tensor) and x.layout is torch.strided and type(x) in _PLAIN


_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def _found(module: nn.Module) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, where it is looked up, by which key, what is there) of each tensor and each module."""
    for path, each in module.named_modules():
        at = f"{path}." if path else ""
        for table in (each._parameters, each._buffers, each._modules):
            for key, value in table.items():
                if value is not None:
                    yield f"{at}{key}", table, key, value
        attributes = each.__dict__
        for key, value in attributes.items():
            if isinstance(value, torch.Tensor):
                yield f"{at}{key}", attributes, key, value
            elif key not in _OF_MODULES and _holds(value):
                yield f"{at}{key}", attributes, key, value
                for k, x in _items(value):
                    if isinstance(x, torch.Tensor):
                        yield f"{at}{key}[{k!r}]", value, k, x


#: what every module has in its ``__dict__``
_OF_MODULES = frozenset(nn.Module().__dict__)


def _holds(value: Any) -> bool:
    """Whether it is a list, tuple or dict with a tensor in it."""
    return type(value) in (list, tuple, dict) and any(isinstance(x, torch.Tensor) for _, x in _items(value))


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if type(value) is dict else enumerate(value)
