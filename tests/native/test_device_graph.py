"""Recordings on a GPU, with functions of this file for the driver's: which kernels read watched memory, and what they are told."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from braze import native
from tests.native.test_device_launch import NOWHERE, Asked, Driver

core = pytest.importorskip("braze.native._native")

VOID, LONG = ctypes.c_void_p, ctypes.c_uint64
CAPTURE = ctypes.CFUNCTYPE(
    ctypes.c_int, VOID, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(LONG), ctypes.POINTER(VOID),
    ctypes.POINTER(ctypes.POINTER(VOID)), ctypes.POINTER(ctypes.c_size_t),
)  # fmt: skip
TYPE = ctypes.CFUNCTYPE(ctypes.c_int, VOID, ctypes.POINTER(ctypes.c_int))
INSTANTIATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(VOID), VOID, ctypes.c_uint64)
SET = ctypes.CFUNCTYPE(ctypes.c_int, VOID, VOID, VOID)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, VOID, VOID)
DESTROY = ctypes.CFUNCTYPE(ctypes.c_int, VOID)


class Params(ctypes.Structure):
    _fields_ = (
        ("function", VOID),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.POINTER(VOID)),
        ("extra", VOID),
        ("kernel", VOID),
        ("context", VOID),
    )


class Graphs(Driver):
    """A driver with graphs: each launch of a kernel is a node, numbered from 0x100 on."""

    def __init__(self):
        super().__init__()
        self.capture, self.kind, self.refuses = 1, 0, False
        self.told, self.launched, self.destroyed, self.flags = [], [], [], None
        self._node = (VOID * 1)()
        self._more = (
            CAPTURE(self._capture), TYPE(self._type), INSTANTIATE(self._instantiate), SET(self._set), LAUNCH(self._run), DESTROY(self._end),
        )  # fmt: skip
        assert core._configure_graphs(*(ctypes.cast(f, VOID).value for f in self._more))

    def _capture(self, stream, status, number, graph, nodes, count):
        assert stream == 0x5000
        self._node[0] = 0x100 + len(self.launches) - 1
        status[0], count[0] = self.capture, 1
        nodes[0] = ctypes.cast(self._node, ctypes.POINTER(VOID))
        return 0

    def _type(self, node, place):
        place[0] = self.kind
        return 0

    def _instantiate(self, place, graph, flags):
        place[0], self.flags = 0x9000 + graph, flags
        return 0

    def _set(self, graph, node, params):
        if self.refuses:
            return 1
        given = ctypes.cast(params, ctypes.POINTER(Params))[0]
        kinds = (LONG, LONG, ctypes.c_int32, ctypes.c_int64, LONG)
        values = [ctypes.cast(given.parameters[i], ctypes.POINTER(k))[0] for i, k in enumerate(kinds)]
        self.told.append((graph, node, given.function, list(given.sizes), values, given.context))
        return 0

    def _run(self, graph, stream):
        self.launched.append((graph, stream))
        return self.status

    def _end(self, graph):
        self.destroyed.append(graph)
        return 0


@pytest.fixture
def driver():
    yield Graphs()
    gc.collect()
    core._configure_graphs(0, 0, 0, 0, 0, 0)
    core._configure_driver(0, 0, 0, 0)


def memory(*tensors):
    return tuple((x.data_ptr(), x.untyped_storage().nbytes()) for x in tensors)


def recording(watched, *launches, asked=None):
    """A recording of launches of one kernel, each on (to, of)."""
    graph = native.DeviceGraph(NOWHERE, watched, lambda graph: None)
    asked = asked or Asked()
    graph.watch()
    for x, y in launches:
        asked.launch(x, y, 1, 7, 3)
    graph.unwatch()
    return graph


def tensors(count=3):
    made = [torch.zeros(64) for _ in range(count)]
    assert not any(x.data_ptr() % 16 for x in made)
    return made


def test_kernels_that_read_watched_memory_are_counted_and_told(driver):
    x, y, z = tensors()
    graph = recording(memory(x, y), (z, x), (z, z), (y, x))
    assert graph.readers == (2, 1)
    assert graph.instantiate(0x40) and driver.flags == 9
    assert [row[:2] for row in driver.told] == [(0x9040, 0x100), (0x9040, 0x102)]
    del driver.told[:]
    graph.move(0, 0x10000)
    assert not driver.told, "the driver is told before the next launch"
    graph()
    sizes = [7, 1, 1, 128, 1, 1, 64]
    one = (0x9040, 0x100, 0x7000, sizes, [z.data_ptr(), 0x10000, 7, 3, 0], None)
    two = (0x9040, 0x102, 0x7000, sizes, [y.data_ptr(), 0x10000, 7, 3, 0], None)
    assert driver.told == [one, two] and driver.launched == [(0x9040, 0x5000)]
    graph()
    graph.move(0, 0x10000)
    graph()
    assert len(driver.told) == 2 and len(driver.launched) == 3, "what stays is not told again"


def test_a_kernel_that_reads_two_pieces_is_told_once(driver):
    x, y, _ = tensors()
    graph = recording(memory(x, y), (x, y))
    assert graph.instantiate(1)
    del driver.told[:]
    graph.move(0, 0x10000)
    graph.move(1, 0x20000)
    graph()
    assert [row[4][:2] for row in driver.told] == [[0x10000, 0x20000]]


def test_a_place_inside_watched_memory_moves_with_it(driver):
    x, y, _ = tensors()
    graph = recording(memory(x), (y, x[16:]))
    assert graph.instantiate(1)
    graph.move(0, 0x10000)
    graph()
    assert driver.told[-1][4][1] == 0x10000 + 64


def test_memory_that_moves_back_is_told_again(driver):
    x, y, _ = tensors()
    graph = recording(memory(x), (y, x))
    assert graph.instantiate(1)
    for address in (0x10000, x.data_ptr(), 0x10000):
        graph.move(0, address)
        graph()
        assert driver.told[-1][4][1] == address


def not_captured(driver):
    driver.capture = 0


def no_kernel(driver):
    driver.kind = 4


@pytest.mark.parametrize("case", [not_captured, no_kernel])
def test_a_launch_whose_node_is_not_known_lets_nothing_move(driver, case):
    x, y, _ = tensors()
    case(driver)
    graph = recording(memory(x), (y, x))
    assert graph.readers == (-1,) and graph.instantiate(1)
    with pytest.raises(ValueError):
        graph.move(0, 0x10000)
    graph()
    assert len(driver.launched) == 1


def test_a_launch_by_triton_lets_nothing_move(driver):
    x, y, _ = tensors()
    asked = Asked(known=False)
    graph = recording(memory(x), (y, x), asked=asked)
    assert graph.readers == (-1,) and len(asked.general) == 1


def test_a_driver_that_refuses_to_tell_a_kernel_lets_nothing_move(driver):
    x, y, _ = tensors()
    graph = recording(memory(x), (y, x))
    driver.refuses = True
    assert graph.instantiate(1) and graph.readers == (-1,)
    graph()


def test_launches_outside_the_recording_are_none_of_its(driver):
    x, y, _ = tensors()
    graph = recording(memory(x))
    Asked().launch(y, x, 1, 7, 3)
    assert graph.readers == (0,)
    graph.watch()
    with pytest.raises(RuntimeError, match="thread"):
        native.DeviceGraph(NOWHERE, (), print).watch()
    graph.unwatch()


def test_another_current_device_is_for_python(driver):
    called = []
    graph = native.DeviceGraph(NOWHERE, (), called.append)
    assert graph.instantiate(1)
    driver.device = 3
    graph()
    assert called == [graph] and not driver.launched


def test_errors_of_the_driver_are_raised_and_what_was_made_is_given_back(driver):
    graph = native.DeviceGraph(NOWHERE, (), print)
    with pytest.raises(RuntimeError):
        graph()
    assert graph.instantiate(1) and not graph.instantiate(1)
    driver.status = 700
    with pytest.raises(RuntimeError, match="700"):
        graph()
    del graph
    gc.collect()
    assert driver.destroyed == [0x9001]


def test_what_is_of_another_kind_is_refused(driver):
    graph = native.DeviceGraph(NOWHERE, ((16, 16),), print)
    for wrong in ((), (0,), (1, 16), (-1, 16), (0, "x"), (0, -1)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            graph.move(*wrong)
    for watched in ((1,), ((1, 2, 3),), [(1, 2)]):
        with pytest.raises(TypeError):
            native.DeviceGraph(NOWHERE, watched, print)
