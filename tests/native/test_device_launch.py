"""Launches on a GPU, with functions of this file for the driver's: what it is given, and when Python is asked."""

import ctypes

import pytest
import torch

from braze import native

core = pytest.importorskip("braze.native._native")
native.bind_torch()

DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
NOWHERE = -1  # the index of a CPU tensor's device


class Configuration(ctypes.Structure):
    """CUlaunchConfig, as the driver's headers have it."""

    _fields_ = [(n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_uint),
    ]  # fmt: skip


LAUNCH_WITH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Configuration), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)  # fmt: skip


class Driver:
    """Notes launches; takes 2 addresses, a size of 4 and one of 8 bytes, and one pointer more."""

    def __init__(self):
        self.launches, self.device, self.status = [], NOWHERE, 0
        self._kept = DEVICE(self._device), STREAM(self._stream), LAUNCH(self._launch)
        self._with, self.attributes = LAUNCH_WITH(self._launch_with), []
        self.configure()

    def configure(self, early=True):
        addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (*self._kept, self._with)]
        core._configure_driver(*addresses[:3], 0, addresses[3] if early else 0)

    def _device(self, place):
        place[0] = self.device
        return 0

    def _stream(self, device, place):
        assert device == NOWHERE
        place[0] = 0x5000
        return 0

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        word, half = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int32)
        kinds = (word, word, half, word, word)
        values = [ctypes.cast(parameters[i], kind)[0] for i, kind in enumerate(kinds)]
        self.launches.append(((gx, gy, gz), (bx, by, bz), function, shared, stream, values))
        return self.status

    def _launch_with(self, how, function, parameters, extra):
        c = how[0]
        self.attributes.append((c.count, c.attributes[0], c.attributes[2]))
        sizes = c.gx, c.gy, c.gz, c.bx, c.by, c.bz, c.shared
        return self._launch(function, *sizes, c.stream, parameters, extra)


@pytest.fixture
def driver():
    yield Driver()
    core._configure_driver(0, 0, 0, 0)


class Asked:
    """A launcher of two buffers and three sizes, of which 1 is built in, and what it asks of Python."""

    def __init__(self, known=True, early=()):
        self.early = early
        self.found, self.general, self.settings, self.chain, self.known = [], [], {}, [], known
        self.launch = native.DeviceLauncher(
            2, 3, self.find, lambda *args: self.general.append(args), self.settings, ("enter",), (self.chain,)
        )

    def find(self, device, *sizes):
        self.found.append((device, *sizes))
        return (0x7000, sizes[1], 128, 64, bytes((0, 4, 8)), 1, *self.early) if self.known else None


def buffers():
    x, y = torch.zeros(64), torch.zeros(64)
    assert not (x.data_ptr() | y.data_ptr()) % 16
    return x, y


def test_the_driver_gets_addresses_and_sizes_as_the_kernel_takes_them(driver):
    asked, (x, y) = Asked(), buffers()
    asked.launch(x, y, 1, 7, -(2**40))
    expected = ((7, 1, 1), (128, 1, 1), 0x7000, 64, 0x5000, [x.data_ptr(), y.data_ptr(), 7, -(2**40), 0])
    assert driver.launches == [expected]
    asked.launch(y, x, 1, 7, -(2**40))
    assert driver.launches[1][-1][:2] == [y.data_ptr(), x.data_ptr()]
    assert asked.found == [(NOWHERE, 1, 7, -(2**40))] and not asked.general


def test_what_waits_by_itself_may_begin_before_the_stream_is_done(driver):
    asked, late, (x, y) = Asked(early=(True,)), Asked(early=(False,)), buffers()
    expected = ((7, 1, 1), (128, 1, 1), 0x7000, 64, 0x5000, [x.data_ptr(), y.data_ptr(), 7, 3, 0])
    asked.launch(x, y, 1, 7, 3)
    assert driver.attributes == [(1, 6, 1)]  # programmatic stream serialization, allowed
    late.launch(x, y, 1, 7, 3)
    driver.configure(early=False)  # a driver that knows nothing of it
    asked.launch(x, y, 1, 7, 3)
    assert driver.launches == [expected] * 3 and len(driver.attributes) == 1
    driver.configure()
    driver.status = 700
    asked.launch(x, y, 1, 7, 3)
    assert len(asked.general) == 1


def test_python_is_asked_again_for_other_sizes(driver):
    asked, (x, y) = Asked(), buffers()
    for n in (7, 8, 8, 7):
        asked.launch(x, y, 1, n, 3)
    assert [launch[0][0] for launch in driver.launches] == [7, 8, 8, 7]
    assert [row[2] for row in asked.found] == [7, 8, 7]


def test_no_program_is_no_launch(driver):
    asked = Asked()
    asked.launch(*buffers(), 1, 0, 3)
    assert not driver.launches and not asked.general


def test_python_is_asked_apart_for_addresses_that_16_does_not_divide(driver):
    asked, (x, y) = Asked(), buffers()
    odd = torch.zeros(65)[1:]
    for first, second in ((x, y), (odd, y), (odd, y), (x, odd), (x, y)):
        asked.launch(first, second, 1, 7, 3)
        assert driver.launches[-1][-1][:2] == [first.data_ptr(), second.data_ptr()]
    sizes = NOWHERE, 1, 7, 3
    assert asked.found == [sizes, (*sizes, 1), (*sizes, 2), sizes] and not asked.general


def test_an_odd_address_behind_sixty_others_is_for_triton(driver):
    found, general = [], []

    def find(device, *more):
        found.append(more)
        return 0x7000, 0, 128, 64, b"", 0

    launch = native.DeviceLauncher(61, 0, find, lambda *args: general.append(args), {}, (), ())
    (x, _), odd = buffers(), torch.zeros(65)[1:]
    launch(*[x] * 59, odd, x)
    assert found == [(1 << 59,)] and not general
    launch(*[x] * 60, odd)
    assert len(found) == len(general) == 1


def other_device(driver, asked, x, y):
    driver.device = 3
    return x, y


def hooked(driver, asked, x, y):
    asked.chain.append(print)
    return x, y


def hook_replaced(driver, asked, x, y):
    asked.settings["enter"] = print
    return x, y


def not_built(driver, asked, x, y):
    asked.known = False
    return x, y


def refused(driver, asked, x, y):
    driver.status = 700
    return x, y


def no_tensor(driver, asked, x, y):
    return x.data_ptr(), y


@pytest.mark.parametrize("case", [other_device, hooked, hook_replaced, not_built, refused, no_tensor])
def test_triton_launches_what_is_not_as_before(driver, case):
    asked = Asked()
    x, y = case(driver, asked, *buffers())
    asked.launch(x, y, 1, 7, 3)
    assert len(asked.general) == 1
    assert asked.general[0][0] is x and asked.general[0][1:] == (y, 1, 7, 3)
    assert len(driver.launches) == (case is refused)


def test_a_size_beyond_64_bits_is_not_for_the_driver(driver):
    asked = Asked()
    asked.launch(*buffers(), 1, 7, 2**63)
    assert len(asked.general) == 1 and not driver.launches


def test_an_error_of_find_comes_through_and_nothing_is_launched(driver):
    def find(device, *sizes):
        raise KeyError("form")

    launch = native.DeviceLauncher(2, 0, find, print, {}, (), ())
    with pytest.raises(KeyError, match="form"):
        launch(*buffers())
    wrong = native.DeviceLauncher(2, 0, lambda device: (1, 1, 1, 0, b"\4", 0), print, {}, (), ())
    with pytest.raises(ValueError, match="another number of arguments"):
        wrong(*buffers())
    assert not driver.launches


def test_counts_are_checked(driver):
    with pytest.raises(TypeError, match="2 buffers and 3 sizes, not 1"):
        Asked().launch(torch.zeros(1))
    for counts in ((0, 0), (401, 0), (1, 61), (1, -1)):
        with pytest.raises(ValueError, match="1 to 400 buffers"):
            native.DeviceLauncher(*counts, print, print, {}, (), ())
    with pytest.raises(TypeError, match="hooks are lists"):
        native.DeviceLauncher(1, 0, print, print, {}, (), ((),))


def test_without_a_driver_triton_launches():
    asked = Asked()
    asked.launch(*buffers(), 1, 7, 3)
    assert len(asked.general) == 1 and not asked.found
