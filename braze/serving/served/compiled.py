"""A module as its level says: as it is, captured, or compiled; and recorded as its mode says.

Whole calls are recorded by a wrapper around everything; pieces by wrappers inside, or by one whose recording is broken at the splitting
operators. The forward context's mode decides which of them takes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from braze.api import compile
from braze.serving.pieces.backend import ServingBackend
from braze.serving.pieces.breakable import BreakableWrapper
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.dispatch import Key
from braze.serving.policy.engine_config import Config
from braze.serving.policy.levels import ATTENTION_OPS, CompilationLevel
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.served.inputs import Inputs
from braze.serving.served.once import ServedOnce
from braze.support.record import record


class Runnable:
    """``call``, recorded as a whole and by pieces.

    ``model``: what it is of. ``manager``: who compiles it, and says why nothing was kept on disk. ``broken``: the wrapper that breaks a recording of the whole, where the module is
    not compiled.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        pools: GraphPools,
        *,
        name: str,
        model: nn.Module,
        broken: CUDAGraphWrapper | None = None,
        manager: ServingBackend | Uncompiled,
    ) -> None:
        self.pools, self.manager, self.broken = pools, manager, broken
        self._call = call
        self.whole = CUDAGraphWrapper(
            broken or call, CUDAGraphMode.FULL, pools=pools, name=name, module=model
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.whole(*args, **kwargs)

    def dropped_guards(self) -> tuple[str, ...]:
        """What is taken for granted, where guards are dropped."""
        return self._call.dropped_guards() if isinstance(self._call, ServedOnce) else ()

    def pieces(self) -> list[CUDAGraphWrapper]:
        """The wrappers of pieces of the graph."""
        users = [user for user in self.pools.users() if isinstance(user, CUDAGraphWrapper)]
        return [user for user in users if user is not self.whole and not isinstance(user, BreakableWrapper)]

    def breakable(self) -> list[CUDAGraphWrapper]:
        """The wrappers that break a recording of the whole."""
        return [user for user in self.pools.users() if isinstance(user, BreakableWrapper)]

    def reason(self, key: Key) -> str:
        """Why a key is not recorded; empty where it is. Of pieces, one that is recorded is enough: the others run as they are."""
        mode, descriptor = key
        tops = [self.whole] if mode is CUDAGraphMode.FULL else self.breakable() or self.pieces()
        if any(descriptor in wrapper.captured() for wrapper in tops):
            return ""
        reasons = [wrapper.reasons().get(descriptor) for wrapper in tops]
        return next((why for why in reasons if why), "nothing of it could be recorded")


@record
class Uncompiled:
    """In place of a compiler where a level has none."""

    level: CompilationLevel

    def explain_miss(self) -> str:
        """Why nothing was on disk."""
        return (
            f"nothing is compiled at level {self.level.value} ({self.level.name}), and nothing kept on disk"
        )


def compiled(
    model: nn.Module,
    config: Config,
    mode: CUDAGraphMode,
    inputs: Inputs,
    evaluate_guards: bool = False,
) -> Runnable:
    """The module as its configuration says, for steps of ``mode``. At levels 2 and 3 no guard captures again; ``evaluate_guards``: it refuses."""
    compilation = config.compilation_config
    pools = GraphPools(compilation.pool)
    name = type(model).__name__
    pieces = mode.requires_piecewise_compilation()
    call: Callable[..., Any]
    if config.level == CompilationLevel.PIECEWISE:
        # the mode that the rules left, and sizes as they are known now
        backend = ServingBackend(
            compilation,
            mode=mode,
            pools=pools,
            capture_sizes=config.recorded_tokens(),
            model=model,
            name=name,
            own_outputs=False,
            keeps=True,
        )
        call = _once(model, backend, inputs, evaluate_guards)
        return Runnable(call, pools, name=name, model=model, manager=backend)
    manager: ServingBackend | Uncompiled = Uncompiled(config.level)
    if config.level == CompilationLevel.NO_COMPILATION:
        call = model
    elif config.level == CompilationLevel.DYNAMO_AS_IS:
        call = braze_compile(model, "eager", inputs)
    else:
        manager = backend = ServingBackend(
            compilation, pools=pools, model=model, name=name, own_outputs=False, whole=True, keeps=True
        )
        call = _once(model, backend, inputs, evaluate_guards)
    if not pieces:
        return Runnable(call, pools, name=name, model=model, manager=manager)
    ops = compilation.splitting_ops or ATTENTION_OPS
    broken = BreakableWrapper(call, CUDAGraphMode.PIECEWISE, ops, pools=pools, name=name, module=model)
    return Runnable(call, pools, name=name, model=model, broken=broken, manager=manager)


def _once(model: nn.Module, backend: ServingBackend, inputs: Inputs, evaluate_guards: bool) -> ServedOnce:
    return ServedOnce(model, backend, inputs, braze_compile(model, backend, inputs), evaluate_guards)


def braze_compile(model: nn.Module, backend: Any, inputs: Inputs) -> Callable[..., Any]:
    """The module captured whole, with the sizes that vary as symbols from the first call on."""
    shapes = inputs.shapes()
    return compile(
        model,
        backend=backend,
        fullgraph=True,
        dynamic=None if shapes else True,
        shapes=shapes or None,
        # one token and several are programs of their own, as are arguments left out
        options={"recompile_limit": 64},
    )
