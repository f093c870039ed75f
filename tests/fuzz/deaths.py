"""Deaths of a process that are PyTorch's own, told by the frames of C and C++ in which it died.

Where memory ends (`memory`, of the machine of faults), C++ of PyTorch's that may not raise ends the process, in eager too: `terminate called`, or a
write to an object that pybind11 could not make. A death in braze's core or in Python is not excused.
"""

from __future__ import annotations

import re
import sys

#: one frame, as c10 prints it; those of the interpreter are one line
FRAME = re.compile(r"frame #\d+: (.*) \(0x[0-9a-f]+ in (.*)\)|<omitting python frames>")
#: what stands between a death and who caused it: the handler of the signal, the libraries of C and C++
BETWEEN = re.compile(r"/(libc|libstdc\+\+|libgcc_s|libpthread)[-.\d]*\.so")
HANDLER = "c10::FatalSignalHandler"
LIBRARIES = re.compile(r"/torch/lib/(libtorch|libc10)[^/]*\.so")


#: kernels that write through no pointer in eager too: a group norm's backward of what lies in channels-last and wants no gradient
DIES_IN_EAGER = "at::native::native_group_norm_backward("


def tell() -> None:
    """Have a fatal signal print the frames in which it came, in a process that has loaded PyTorch."""
    if (torch := sys.modules.get("torch")) is not None:
        torch._C._set_print_stack_traces_on_fatal_signal(True)


def innermost(said: str) -> str:
    """The file of the innermost frame of the thread that died, helpers aside; "python" for the interpreter, "" where nothing was printed."""
    died = next(
        (thread for thread in re.split(r"PID: \d+, Thread", said) if f"{HANDLER}::fatal" in thread), ""
    )
    for found in FRAME.finditer(died):
        function, file = found.groups()
        if function is None:
            return "python"
        if HANDLER not in function and not BETWEEN.search(file):
            return str(file)
    return ""


def is_pytorchs(tags: tuple[str, ...], said: str) -> bool:
    """Whether a program died in a kernel that is known to, or, where memory ended, by C++ of PyTorch's; ``said``: how the process ended, and all that it printed."""
    if DIES_IN_EAGER in said and said.startswith("died of SIGSEGV"):
        return True
    if "memory" not in tags:
        return False
    file = innermost(said)
    unraised = "terminate called after throwing" in said and said.startswith("died of SIGABRT")
    return LIBRARIES.search(file) is not None and (unraised or "libtorch_python" in file)
