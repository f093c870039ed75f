"""The C extension (frame hook, guard walker, entry, launcher) and its pure-Python stand-in.

The rest of braze imports these names from here, never from ``_native``. ``BRAZE_PURE=1`` in the
environment asks for the stand-in. Imports support only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from braze.native import (
    around,
    calibrate,
    driver,
    held,
    operations,
    places,
    products,
    pure,
    shims,
    tables,
    torch_state,
    written,
)
from braze.support.log import warn_once

_problem = "BRAZE_PURE is set" if os.environ.get("BRAZE_PURE", "0") not in ("", "0") else ""

if TYPE_CHECKING:
    from braze.native import _native as core
elif _problem:
    core = pure
else:
    try:
        from braze.native import _native as core
    except ImportError as error:
        core, _problem = pure, str(error)

if _problem:
    warn_once(
        "BZ6001",
        f"BZ6001: braze runs on its pure-Python core, which is slower at each call ({_problem}). "
        "Install a C compiler and reinstall braze to build the extension.",
    )

#: whether the C extension is in use
native_available = not _problem

OFF, RUN, TRACE = pure.OFF, pure.RUN, pure.TRACE
DEEPCOPY = pure.DEEPCOPY
GuardProgram = core.GuardProgram
Entry = core.Entry
CallOfClass = core.CallOfClass
Launcher = core.Launcher
Segment = core.Segment
DeviceLauncher = core.DeviceLauncher
DeviceRun = core.DeviceRun
DeviceGraph = core.DeviceGraph
out_product = products.out_product
view = products.view
ViewLayout = products.ViewLayout
shim = shims.shim
SHIMS = shims.OPERATORS
written_call = written.written_call
grad_off = around.grad_off
planned = around.planned
operation = operations.operation
held_once = held.held_once
look = held.look
DEFAULT = core.DEFAULT
force_eager = core.force_eager
eager_forced = core.eager_forced
shown_call = core.shown_call
watch_tracers = core.watch_tracers
watch_ranges = core.watch_ranges
in_range = core.in_range
watch_builtins = core.watch_builtins
set_frame_callback = core.set_frame_callback
skip_code = core.skip_code
untraced_code = core.untraced_code
forget_code = core.forget_code
run_hooked = core.run_hooked
unhooked = core.unhooked
emptied = core.emptied
handling = core.handling
taken_over = core.taken_over
throw = core.throw
call_traced = core.call_traced
mode = core.mode
uninstall = core.uninstall
hook_available = core.hook_available
addresses = calibrate.addresses if native_available else places.addresses
data_ptr = core.data_ptr
empty_strided = core.empty_strided
tabulate = calibrate.tabulate if native_available else tables.tabulate
tensor_meta = calibrate.tensor_meta if native_available else core.tensor_meta
tensor_of_numbers = calibrate.tensor_of_numbers if native_available else core.tensor_of_numbers
counters = core.counters
COUNTER, WHICH = torch_state.COUNTER, torch_state.WHICH
bind_driver = driver.bind
bind_graphs = driver.bind_graphs
driver_version = driver.version
new_stream = driver.new_stream
parameter_sizes = driver.parameter_sizes
relaxed = driver.relaxed
replays_natively = calibrate.replays_natively if native_available else core.replays_natively
Holders = core.Holders
Replay = core.Replay
Replays = core.Replays
storage_place = core.storage_place
bind_torch = calibrate.bind_torch if native_available else core.bind_torch
