"""A module as its level says: as it is, captured, or compiled; and recorded as its mode says.

Whole calls are recorded by a wrapper around everything; pieces by wrappers inside, or by one whose recording is broken at the splitting
operators. The forward context's mode decides which of them takes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.dispatch import Key
from braze.serving.policy.engine_config import Config
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.served.inputs import Inputs


class Runnable:
    """``call``, recorded as a whole and by pieces.

    ``manager``: of the compiler's cache, None where pieces are not compiled. ``broken``: the wrapper that breaks a recording of the whole, if
    there is one.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        pools: GraphPools,
        *,
        name: str,
        broken: CUDAGraphWrapper | None = None,
        manager: Any = None,
    ) -> None:
        self.pools, self.manager, self.broken = pools, manager, broken
        self.whole = CUDAGraphWrapper(broken or call, CUDAGraphMode.FULL, pools=pools, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.whole(*args, **kwargs)

    def pieces(self) -> list[CUDAGraphWrapper]:
        """The wrappers of pieces of the graph."""
        return [user for user in self.pools.users() if user is not self.whole and user is not self.broken]

    def reason(self, key: Key) -> str:
        """Why a key is not recorded; empty where it is. Of pieces, one that is recorded is enough: the others run as they are."""
        mode, descriptor = key
        tops = [self.whole] if mode is CUDAGraphMode.FULL else [self.broken] if self.broken else self.pieces()
        if any(descriptor in wrapper.captured() for wrapper in tops):
            return ""
        reasons = [wrapper.reasons().get(descriptor) for wrapper in tops]
        return next((why for why in reasons if why), "nothing of it could be recorded")


def uncompiled(model: nn.Module, pools: GraphPools) -> Runnable:
    """The module as it is."""
    return Runnable(model, pools, name=type(model).__name__)


def compiled(model: nn.Module, config: Config, inputs: Inputs) -> Runnable:
    """The module as its configuration says."""
    return uncompiled(model, GraphPools(config.compilation_config.pool))
