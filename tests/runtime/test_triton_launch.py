"""What of Triton's built kernels the driver may launch again, and for which sizes."""

from types import SimpleNamespace

import pytest
import torch

from braze import native
from braze.runtime.triton_launch import Launch, form_of


class Function:
    """A kernel of Triton's that notes its launches."""

    arg_names = ("x", "y", "n", "XBLOCK")

    def __init__(self, **metadata):
        self.launches = []
        plain = {"num_warps": 4, "shared": 96, "num_ctas": 1, "global_scratch_size": 0}
        self.kernel = SimpleNamespace(function=0x700, metadata=SimpleNamespace(**{**plain, **metadata}))

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.launches.append((grid, args, options))
            return self.kernel

        return launch


@pytest.fixture
def takes(monkeypatch):
    """What the driver says that a kernel takes."""
    told = {"sizes": (8, 8, 4, 8, 8)}
    monkeypatch.setattr(native, "parameter_sizes", lambda function: told["sizes"])
    return told


def launch_of(function):
    return Launch(function, lambda n: (n + 63) // 64, 1, {"XBLOCK": 64}, 4, 2)


def test_what_triton_built_serves_sizes_of_the_same_kind(takes):
    function = Function()
    launch, x, y = launch_of(function), torch.zeros(64), torch.zeros(64)
    assert launch.find(-1, 100) is None
    launch.general(x, y, 100)
    assert function.launches == [((2,), (x, y, 100), {"XBLOCK": 64, "num_warps": 4, "num_stages": 2})]
    assert launch.find(-1, 100) == (0x700, 2, 128, 96, b"\4", 2)
    assert launch.find(-1, 1000) == (0x700, 16, 128, 96, b"\4", 2)
    assert launch.find(-1, 0) is None  # a multiple of 16 is another kind
    for n in (1, 96, 2**31, 2**40 + 1):
        assert launch.find(-1, n) is None
    assert launch.find(0, 100) is None  # another device


def test_no_launch_of_no_programs(takes):
    function = Function()
    launch = launch_of(function)
    launch.general(torch.zeros(4), torch.zeros(4), 0)
    launch.general(torch.zeros(4), torch.zeros(4), -70)
    assert not function.launches
    launch.general(torch.zeros(4), torch.zeros(4), 16)
    assert launch.find(-1, -64)[1] == 0


def test_what_was_built_for_odd_addresses_is_not_kept(takes):
    launch = launch_of(Function())
    launch.general(torch.zeros(65)[1:], torch.zeros(64), 100)
    assert launch.find(-1, 100) is None
    launch.general(torch.zeros(64), torch.zeros(64), 100)
    assert launch.find(-1, 100) is not None


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
    form = form_of(Function().kernel, 2, (n,))
    assert (form.widths, form.scratch, form.threads, form.shared) == (widths, scratch, 128, 96)


@pytest.mark.parametrize("sizes", [None, (8, 8), (8, 4, 4), (8, 8, 8, 8), (8, 8, 4, 4), ()])
def test_a_kernel_that_takes_something_else_stays_triton_s(takes, sizes):
    takes["sizes"] = sizes
    assert form_of(Function().kernel, 2, (100,)) is None


@pytest.mark.parametrize(
    "metadata",
    [{"global_scratch_size": 64}, {"profile_scratch_size": 8}, {"num_ctas": 2}, {"launch_pdl": True}],
)
def test_a_kernel_that_is_launched_another_way_stays_triton_s(takes, metadata):
    assert form_of(Function(**metadata).kernel, 2, (100,)) is None
    launch = launch_of(Function(**metadata))
    launch.general(torch.zeros(64), torch.zeros(64), 100)
    assert launch.find(-1, 100) is None


def test_without_cuda_triton_launches():
    launch = launch_of(Function())
    assert launch.launcher() == launch.general or torch.version.cuda is not None
