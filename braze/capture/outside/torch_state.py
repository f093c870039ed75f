"""PyTorch's global state in a trace: guarded as found, set as the program says, restored at the end."""

from __future__ import annotations

import contextlib
import decimal
import sys
from collections.abc import Iterator
from typing import Any

import torch

from braze.capture.facts.records import Check
from braze.graph.private import torch_compat, torch_settings
from braze.graph.private.torch_settings import SETTINGS, leave_autocast, set_autocast
from braze.native import torch_state


def autocast_now() -> tuple[Any, ...]:
    """(device type, enabled, dtype) for each device type, and the cache flag."""
    return torch_compat.autocast_state()


def is_handling() -> bool:
    """Whether an exception is handled here."""
    return sys.exc_info()[1] is not None


def decimal_context() -> tuple[Any, ...]:
    """What arithmetic on decimals goes by in this thread, but for what has happened in it."""
    now = decimal.getcontext()
    return now.prec, now.rounding, now.Emin, now.Emax, now.clamp, tuple(now.traps.values())


class TorchState:
    """State at the start of a trace, and what inference mode the program is in."""

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.autocast: tuple[Any, ...] = ()
        self.inference = False
        self.device: torch.device | None = None
        self.modes = 0
        self.function_modes: list[Any] = []
        self.dispatch_modes = (0, False)
        self.dual_level = -1
        self.nesting = 0
        #: what the program has asked for -> the answer; not of settings that it has changed itself by then
        self.asked: dict[tuple[Any, tuple[Any, ...]], Any] = {}
        #: what asks for those
        self.changed: set[Any] = set()
        #: the exception that is handled where the function is called
        self.error: BaseException | None = None

    def remember(self) -> None:
        """Note the state, to guard it and to set it back."""
        self.error = sys.exc_info()[1]
        self.start = {name: read() for name, (read, _) in SETTINGS.items()}
        self.autocast = autocast_now()
        self.inference = torch.is_inference_mode_enabled()
        self.device, self.modes = torch_state.default_device(), torch_state.function_modes()
        self.function_modes = torch_settings.function_modes()
        self.dual_level = torch_compat.dual_level()
        self.dispatch_modes = torch_compat.dispatch_modes()

    @contextlib.contextmanager
    def outside_inference(self) -> Iterator[None]:
        """Fakes are ordinary tensors even where the program runs in inference mode."""
        if not self.inference:
            yield
            return
        with torch.inference_mode(False), torch.no_grad():
            yield

    def restore(self) -> None:
        """Set everything back that the program changed, or the trace did when it ended by an exception."""
        try:
            self._set_back()
        except MemoryError:  # for once, perhaps
            self._set_back()
            raise

    def _set_back(self) -> None:
        torch_compat.leave_modes(self.dispatch_modes)
        torch_settings.set_modes_back(self.function_modes)
        for name, (read, write) in SETTINGS.items():
            if read() != self.start[name]:
                write(self.start[name])
        if autocast_now() != self.autocast:
            set_autocast(self.autocast)
        while self.nesting > 0:
            torch.autocast_decrement_nesting()
            self.nesting -= 1
        while self.nesting < 0:
            torch.autocast_increment_nesting()
            self.nesting += 1

    def is_handling(self) -> bool:
        """Whether an exception is handled where the function is called; guarded."""
        found = self.asked[is_handling, ()] = self.error is not None
        return found

    def note_decimals(self) -> None:
        """Arithmetic on decimals rounds, and raises, as its context says; guarded."""
        self.asked[decimal_context, ()] = decimal_context()

    def told(self, function: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        """What a function tells of a setting, guarded unless the program may have made it so."""
        value = function(*args, **(kwargs or {}))
        if function not in self.changed and not kwargs:
            self.asked[function, tuple(args)] = value
        return value

    def on_device(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The words of a call, with the device on which it makes a tensor where the program has entered or left ``with device:`` since the start:
        a graph runs under the default device that the caller has."""
        device = torch_state.default_device()
        if device == self.device or kwargs.get("device") is not None:
            return kwargs
        if not torch_settings.makes_on_default_device(function):
            return kwargs
        if device is None:  # what is copied stays where it is
            device = args[0].device if args and isinstance(args[0], torch.Tensor) else torch.device("cpu")
        return {**kwargs, "device": device}

    def effects(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """(setter, arguments) for each setting that the program leaves changed."""
        calls: list[tuple[Any, tuple[Any, ...]]] = []
        for name, (read, write) in SETTINGS.items():
            if read() != self.start[name]:
                calls.append((write, (read(),)))
        now = autocast_now()
        if now != self.autocast:
            for kind, enabled, dtype in now[:-1]:
                calls.append((torch.set_autocast_enabled, (kind, enabled)))
                calls.append((torch.set_autocast_dtype, (kind, dtype)))
            calls.append((torch.set_autocast_cache_enabled, (now[-1],)))
        calls += [(torch.autocast_increment_nesting, ())] * self.nesting
        calls += [(leave_autocast, ())] * -self.nesting
        return calls + self._default_devices()

    def _default_devices(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """The same for default devices: at a break inside ``with device:``, and where such a block ends after one."""
        left, entered = torch_settings.changed_modes(self.function_modes)
        calls: list[tuple[Any, tuple[Any, ...]]] = []
        for mode in reversed(left):
            calls.append((torch.device.__exit__, (mode.device, None, None, None)))
        for mode in entered:
            calls.append((torch.device.__enter__, (mode.device,)))
        return calls

    def guards(self) -> list[tuple[Check, Any]]:
        """What must be as it was at the start."""
        return [
            (Check.GRAD_MODE, self.start["grad"]),
            (Check.INFERENCE_MODE, self.inference),
            (Check.AUTOCAST, self.autocast),
            (Check.DEFAULT_DTYPE, self.start["dtype"]),
            (Check.DEFAULT_DEVICE, self.device),
            (Check.FUNCTION_MODES, self.modes),
            (Check.DETERMINISTIC, self.start["deterministic"]),
            *((Check.SETTING, (function, args, value)) for (function, args), value in self.asked.items()),
        ]
