"""What of Triton's built kernels the driver may launch again, and for which sizes."""

import dataclasses
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from braze import native
from braze.runtime.triton import triton_build, triton_launch, triton_load, triton_worker
from braze.runtime.triton.triton_build import Job
from braze.runtime.triton.triton_launch import First, Launch, form_of
from braze.support import log
from braze.support.caches import Latest
from braze.support.errors import Unsupported


class Function:
    """A kernel of Triton's that notes what it is built for, and its own launches."""

    arg_names = ("x", "y", "n", "XBLOCK")

    def __init__(self, **metadata):
        self.launches, self.built = [], []
        plain = {"num_warps": 4, "shared": 96, "num_ctas": 1, "global_scratch_size": 0}
        self.kernel = SimpleNamespace(function=0x700, metadata=SimpleNamespace(**{**plain, **metadata}))

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))

    def warmup(self, *args, grid, **options):
        *buffers, n = args
        self.built.append(([buffer.dtype for buffer in buffers], n, options))
        return self.kernel


@pytest.fixture
def takes(monkeypatch):
    """What the driver says that a kernel takes."""
    told = {"sizes": (8, 8, 4, 8, 8)}
    monkeypatch.setattr(native, "parameter_sizes", lambda function: told["sizes"])
    monkeypatch.setattr(triton_launch, "loaded", lambda kernel, device, job: kernel.function)
    return told


JOB = Job("nowhere.py", "k", ("*fp32", "*bf16"), (), (("XBLOCK", 64),), 4, 2)


@pytest.fixture
def launch_of(monkeypatch):
    def make(function):
        monkeypatch.setattr(triton_worker, "load_module", lambda path: SimpleNamespace(k=function))
        return Launch(function, lambda n: (n + 63) // 64, ("n",), JOB)

    return make


def test_what_triton_built_serves_sizes_of_the_same_kind(takes, launch_of):
    function = Function()
    launch = launch_of(function)
    assert launch.find(0, 100) == (0x700, 2, 128, 96, b"\4", 2, False)
    assert launch.find(0, 1000) == (0x700, 16, 128, 96, b"\4", 2, False)
    options = {"XBLOCK": 64, "num_warps": 4, "num_stages": 2}
    assert function.built == [(["fp32", "bf16"], 100, options)] and not function.launches
    for n in (96, 2**31 + 1, 2**36):  # of other kinds
        launch.find(0, n)
    launch.find(1, 100)  # another device
    assert [n for _, n, _ in function.built] == [100, 96, 2**31 + 1, 2**36, 100]


def test_kernels_are_built_apart_for_addresses_that_16_does_not_divide(takes, launch_of):
    class Seen(Function):
        def warmup(self, *args, grid, **options):
            self.addresses = [buffer.data_ptr() % 16 for buffer in args[:2]]
            return super().warmup(*args, grid=grid, **options)

    function = Seen()
    launch = launch_of(function)
    for bits, odd in ((0, [0, 0]), (1, [1, 0]), (2, [0, 1]), (3, [1, 1])):
        given = (100, bits) if bits else (100,)
        assert launch.find(0, *given) == (0x700, 2, 128, 96, b"\4", 2, False)
        assert function.addresses == odd
    launch.find(0, 1000, 2)
    assert len(function.built) == 4


def test_a_kernel_that_waits_by_itself_is_built_and_launched_to_begin_early(takes, monkeypatch):
    for constant, asked in ((1, {"launch_pdl": True}), (0, {})):
        function = Function(launch_pdl=bool(constant))
        monkeypatch.setattr(
            triton_worker, "load_module", lambda path, function=function: SimpleNamespace(k=function)
        )
        job = dataclasses.replace(JOB, constants=(("EARLY", constant),))
        launch = Launch(function, lambda n: n, ("n",), job)
        options = {"EARLY": constant, "num_warps": 4, "num_stages": 2, **asked}
        assert launch.find(0, 100)[-1] is bool(constant)
        assert function.built[0][-1] == options
        launch.general(torch.zeros(4), torch.zeros(4), 4)
        assert function.launches[0][-1] == options


def test_what_the_driver_cannot_launch_triton_does(takes, launch_of):
    function = Function()
    launch, x, y = launch_of(function), torch.zeros(64), torch.zeros(64)
    launch.general(x, y, 100)
    assert function.launches == [((2,), (x, y, 100), {"XBLOCK": 64, "num_warps": 4, "num_stages": 2})]


def test_what_a_launch_raises_says_which_kernel_it_was(takes, launch_of):
    class Broken(Function):
        def __getitem__(self, grid):
            raise RuntimeError("Triton Error [CUDA]: invalid argument")

    with pytest.raises(RuntimeError, match="invalid argument") as raised:
        launch_of(Broken()).general(torch.zeros(4), torch.zeros(4), 100)
    assert raised.value.__notes__ == ["braze: it came of the launch of k"]


def test_a_kernel_that_cannot_be_built_or_loaded_is_left_to_triton(takes, launch_of, monkeypatch):
    def full(kernel, device, job):
        raise RuntimeError("out of resources")

    function = Function()
    launch = launch_of(function)
    monkeypatch.setattr(triton_launch, "loaded", full)
    assert launch.find(0, 100) is None and launch.find(0, 100) is None
    assert len(function.built) == 1


def test_who_builds_a_graph_s_kernels_is_told_of_the_first_launch(takes, launch_of):
    told = []
    ahead = SimpleNamespace(before=lambda *args: told.append(args), after=lambda path: told.append(path))
    launch = launch_of(Function())
    launch.first = First(ahead, "k.py", ("n",))
    assert launch.find(0, 0) is None and not told, "no kernel is wanted"
    launch.find(0, 100), launch.find(0, 96), launch.general(torch.zeros(4), torch.zeros(4), 4)
    assert told == [("k.py", ("n",), (100,)), "k.py"]


def test_a_launch_of_more_programs_than_there_may_be_is_refused(takes, launch_of):
    """The driver is told 32 bits of their number: of 2^32 and some it would run these some."""
    function = Function()
    launch = launch_of(function)
    takes["sizes"] = (8, 8, 8, 8, 8)  # of such a number
    most = 64 * (2**31 - 1)
    assert launch.find(0, most)[1] == 2**31 - 1 and launch.ready(0, (most,)) == ""
    for n in (most + 1, 64 * 2**32 + 64):
        assert "programs" in launch.ready(0, (n,))
        with pytest.raises(OverflowError, match=r"k is \d+ programs"):
            launch.find(0, n)
        with pytest.raises(OverflowError):
            launch.general(torch.zeros(1), torch.zeros(1), n)
    assert not function.launches


def test_no_launch_of_no_programs(takes, launch_of):
    function = Function()
    launch = launch_of(function)
    launch.general(torch.zeros(4), torch.zeros(4), 0)
    launch.general(torch.zeros(4), torch.zeros(4), -70)
    assert launch.find(0, -64) is None
    assert not function.launches and not function.built
    launch.find(0, 16)
    assert launch.find(0, -64)[1] == 0


@pytest.mark.parametrize(
    ("n", "sizes", "widths", "scratch"),
    [
        (100, (8, 8, 4), b"\4", 0),
        (1, (8, 8, 8, 8), b"\0", 2),
        (2**31, (8, 8, 8, 8), b"\x08", 1),
        (-(2**31), (8, 8, 4, 8), b"\4", 1),
    ],
)
def test_the_driver_says_what_a_kernel_takes(takes, n, sizes, widths, scratch):
    takes["sizes"] = sizes
    form = form_of(Function().kernel, 0x700, 2, (n,))
    assert (form.widths, form.scratch, form.threads, form.shared) == (widths, scratch, 128, 96)


@pytest.mark.parametrize("sizes", [None, (8, 8), (8, 4, 4), (8, 8, 8, 8), (8, 8, 4, 4), ()])
def test_a_kernel_that_takes_something_else_stays_triton_s(takes, sizes):
    takes["sizes"] = sizes
    assert form_of(Function().kernel, 0x700, 2, (100,)) is None


@pytest.mark.parametrize(
    "metadata",
    [
        {"global_scratch_size": 64},
        {"profile_scratch_size": 8},
        {"num_ctas": 2},
        {"launch_cooperative_grid": True},
    ],
)
def test_a_kernel_that_is_launched_another_way_stays_triton_s(takes, launch_of, metadata):
    assert form_of(Function(**metadata).kernel, 0x700, 2, (100,)) is None
    assert launch_of(Function(**metadata)).find(0, 100) is None


def test_without_cuda_triton_launches(launch_of):
    launch = launch_of(Function())
    assert launch.launcher() == launch.general or torch.version.cuda is not None


def test_what_a_launch_asks_for_is_ready_before_it(takes, launch_of):
    function = Function()
    launch = launch_of(function)
    launch.by_driver = True
    assert launch.ready(0, (100,)) == "" and launch.ready(0, (100,)) == "" and launch.ready(0, (0,)) == ""
    assert launch.find(0, 99) == (0x700, 2, 128, 96, b"\4", 2, False)
    assert len(function.built) == 1 and not function.launches


@pytest.mark.parametrize("by_driver", [True, False], ids=["the driver launches", "Triton launches"])
def test_why_a_kernel_is_not_ready_is_told(takes, launch_of, monkeypatch, by_driver):
    def broken(*args, **kwargs):
        raise ValueError("ptxas failed with error code 255")

    function = Function()
    launch = launch_of(function)
    launch.by_driver = by_driver
    assert launch.ready(0, (100,)) == ""
    monkeypatch.setattr(function, "warmup", broken, raising=False)
    assert launch.ready(0, (64,)) == "ValueError: ptxas failed with error code 255"


def test_what_a_worker_could_not_build_without_harm_nobody_builds(takes, launch_of, monkeypatch):
    """For sizes of any kind, ahead of a launch, at it, and where its cuts are timed."""
    monkeypatch.setattr(triton_build, "_refused", {})
    function = Function()
    launch = launch_of(function)
    triton_build.Ticket(dataclasses.replace(JOB, sizes=(1023,))).answer("too much memory", endless=True)
    triton_build.Ticket(dataclasses.replace(JOB, num_warps=8)).answer("ptxas failed")
    assert "too much memory" in launch.ready(0, (100,))
    assert launch.find(0, 64) is None
    with pytest.raises(RuntimeError, match="BZ5012: k is not built: too much memory"):
        launch.general(torch.zeros(4), torch.zeros(4), 64)
    assert not function.built and not function.launches
    assert triton_build.refusal(dataclasses.replace(JOB, num_warps=8)) == ""


def test_a_build_that_does_not_end_is_not_begun_again(takes, launch_of):
    ahead = SimpleNamespace(before=lambda *args: "it was not built within 120 seconds", after=None)
    function = Function()
    launch = launch_of(function)
    launch.first = First(ahead, "k.py", ("n",))
    assert launch.ready(0, (100,)) == "it was not built within 120 seconds" and not function.built


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("load", "it takes 300000 bytes of shared memory, and the GPU has 232448"),
        ("load", "Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain."),
        ("load", "Triton Error [CUDA]: device kernel image is invalid"),
        ("build", "PTXAS error: `ptxas` failed with error code 255"),
    ],
    ids=["no room", "an old driver", "no module", "ptxas"],
)
def test_a_kernel_of_sizes_that_nobody_knows_is_refused_before_anything_runs(
    takes, launch_of, monkeypatch, tmp_path, step, said
):
    """What Triton builds for such sizes differs from what a launch will want in what is built in, not in what it takes."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def refused(*args, **kwargs):
        raise RuntimeError(said)

    function = Function()
    if step == "load":
        monkeypatch.setattr(triton_launch, "loaded", refused)
    else:
        monkeypatch.setattr(function, "warmup", refused, raising=False)
    launch = launch_of(function)
    launch.by_driver = True
    ((_, (n,)),) = triton_load.with_sizes([launch], {"other": 64})
    assert n != 1 and n % 16
    with pytest.raises(Unsupported, match=rf"BZ5012: k cannot be built(.|\n)*{re.escape(said)}"):
        triton_load.require_ready(triton_load.with_sizes([launch], {}), "cuda:0")
    marks = SimpleNamespace(mark=lambda path: tmp_path / path.name)
    launch.first = First(marks, "k.py", ("n",))
    assert len(triton_load.with_sizes([launch], {})) == 1
    (tmp_path / "k.py").touch()
    assert triton_load.with_sizes([launch], {}) == [], "it was built and loaded by another process"
    assert len(triton_load.with_sizes([launch], {"n": 64})) == 1


def test_sizes_whose_own_kernel_is_refused_run_what_was_built_for_any(takes, launch_of, monkeypatch, caplog):
    def full(kernel, device, job):
        if function.built[-1][1] % 16 == 0 or function.built[-1][1] == 1:
            raise RuntimeError("out of resource: shared memory")
        return kernel.function

    function = Function()
    launch = launch_of(function)
    monkeypatch.setattr(triton_launch, "loaded", full)
    monkeypatch.setattr(log, "_seen", Latest(8))
    monkeypatch.setattr(log.logger("kernels"), "propagate", True)
    for n, programs in ((64, 1), (640, 10), (1, 1), (0, 0)):
        assert launch.find(0, n) == (0x700, programs, 128, 96, b"\4", 2, False)
    assert not function.launches and caplog.text.count("BZ5012") == 1
    assert [n for _, n, _ in function.built] == [64, 67, 1], "one kernel for all of them"
    takes["sizes"] = (8, 8, 8, 8)
    assert launch.find(0, 1 << 36)[4] == b"\x08", "as many bytes as the number takes"


def test_what_no_launch_has_room_for_is_refused_when_it_is_loaded(monkeypatch):
    """The driver loads it, and refuses each launch."""
    pytest.importorskip("triton")
    import triton.runtime.driver  # noqa: F401

    told = {"most": (1024,), "shared": 232448}
    utils = SimpleNamespace(
        load_binary=lambda *args: (0x600, 0x700, 64, 0, *told["most"]),
        get_device_properties=lambda device: {"max_shared_mem": told["shared"]},
    )
    driver = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(sys.modules["triton.runtime.driver"], "driver", driver)
    own = triton_launch.shared_memory.__wrapped__  # of this driver
    monkeypatch.setattr(triton_launch, "shared_memory", own)

    def kernel(**metadata):
        plain = {"num_warps": 32, "warp_size": 32, "shared": 96}
        return SimpleNamespace(name="k", kernel=b"", metadata=SimpleNamespace(**{**plain, **metadata}))

    job = SimpleNamespace(path="k.py", name="k")
    assert triton_launch.loaded(kernel(), 0, job) == 0x700
    with pytest.raises(RuntimeError, match="232449 bytes of shared memory, and the GPU has 232448"):
        triton_launch.loaded(kernel(shared=232449), 0, job)
    with pytest.raises(RuntimeError, match="600 columns of tensor memory"):
        triton_launch.loaded(kernel(tmem_size=600), 0, job)
    told["most"] = (512,)
    with pytest.raises(RuntimeError, match="512 threads have them, and not 1024"):
        triton_launch.loaded(kernel(), 0, job)
    assert triton_launch.loaded(kernel(num_warps=16), 0, job) == 0x700
    told["most"] = ()  # a Triton that does not tell
    assert triton_launch.loaded(kernel(), 0, job) == 0x700


def test_a_kernel_that_triton_alone_loads_is_refused_before_anything_runs(takes, launch_of):
    """Somebody listens to what Triton loads, or the driver is not NVIDIA's."""

    class Refused(SimpleNamespace):
        @property
        def run(self):
            raise RuntimeError("out of resource: shared memory")

    function = Function()
    function.kernel = Refused(**vars(function.kernel))
    launch = launch_of(function)
    assert not launch.by_driver and "shared memory" in launch.ready(0, (100,))


def test_a_refused_kernel_is_not_told_to_be_built(takes, launch_of, monkeypatch):
    def full(kernel, device, job):
        raise RuntimeError("out of resources")

    monkeypatch.setattr(triton_launch, "loaded", full)
    built = []
    ahead = SimpleNamespace(before=lambda *args: "", after=built.append)
    launch = launch_of(Function())
    launch.first = First(ahead, "k.py", ("n",))
    assert launch.find(0, 100) is None and not built


def test_a_graph_whose_kernel_is_refused_is_refused_before_anything_runs(takes, launch_of, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    launch = launch_of(Function())
    launch.by_driver = True
    triton_load.require_ready(triton_load.with_sizes([launch], {"n": 100}), "cuda:0")
    assert len(launch.forms) == 1

    def too_old(kernel, device, job):
        raise RuntimeError(
            "Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain."
        )

    monkeypatch.setattr(triton_launch, "loaded", too_old)
    with pytest.raises(Unsupported, match=r"BZ5012: k cannot be built(.|\n)*unsupported toolchain"):
        triton_load.require_ready([(launch, (64,))], "cuda:0")
