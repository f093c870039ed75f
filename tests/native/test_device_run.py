"""Launches on a GPU one after another in one call, with functions of this file for the driver's: the same as each by itself, and as one graph."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch

from braze import native
from tests.native.test_device_graph import DESTROY, INSTANTIATE, LAUNCH, SET, VOID, Params
from tests.native.test_device_launch import NOWHERE, Asked, Driver

core = pytest.importorskip("braze.native._native")

CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, VOID, ctypes.POINTER(ctypes.c_int))
CREATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(VOID), ctypes.c_uint)
ADD = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(VOID), VOID, ctypes.POINTER(VOID), ctypes.c_size_t, ctypes.POINTER(Params)
)
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
CONNECT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    VOID,
    ctypes.POINTER(VOID),
    ctypes.POINTER(VOID),
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_size_t,
)
KINDS = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64)
#: modes of a thread's stream capture
GLOBAL, RELAXED = 0, 2
#: launches of a graph here, those for which one is made, and the calls before it is made
MANY, FEWEST, SETTLED = 8, 8, 3


class Rows(Driver):
    """A driver that makes graphs of kernels, numbered from 0x100 on; each launch of one does what its nodes know."""

    def __init__(self):
        super().__init__()
        self.capturing, self.refuses = 0, ""
        self.nodes, self.behind, self.told, self.graphs, self.gone = {}, [], [], [], []
        self.stream = 0x5000
        self._more = (
            CAPTURING(self._is_capturing), CREATE(self._create), ADD(self._add), INSTANTIATE(self._instantiate), SET(self._set),
            LAUNCH(self._run), DESTROY(self._gone), DESTROY(self._gone), EXCHANGE(self._exchange), CONNECT(self._connect),
        )  # fmt: skip
        self.early, self.mode = [], GLOBAL
        self.configure_rows()

    def configure_rows(self, early=True):
        addresses = [ctypes.cast(f, VOID).value for f in self._more]
        assert core._configure_rows(*addresses[:-1], addresses[-1] if early else 0)

    def _stream(self, device, place):
        place[0] = self.stream
        return 0

    def _is_capturing(self, stream, place):
        assert stream == self.stream
        place[0] = self.capturing
        return 0

    def _create(self, place, flags):
        place[0] = 0x900
        return int(self.refuses == "create")

    @staticmethod
    def _params(params):
        given = ctypes.cast(params, ctypes.POINTER(Params))[0]
        values = [ctypes.cast(given.parameters[i], ctypes.POINTER(k))[0] for i, k in enumerate(KINDS)]
        return given.function, list(given.sizes), values

    def _add(self, place, graph, ahead, count, params):
        assert graph == 0x900 and self.mode == RELAXED
        place[0] = 0x100 + len(self.nodes)
        self.behind.append(ahead[0] if count else None)
        self.nodes[place[0]] = self._params(params)
        return int(self.refuses == "add")

    def _exchange(self, place):
        self.mode, place[0] = place[0], self.mode
        return 0

    def _connect(self, graph, ahead, behind, edges, count):
        assert count == 1
        self.early.append((ahead[0], behind[0], edges[:8]))
        return int(self.refuses == "connect")

    def _instantiate(self, place, graph, flags):
        assert self.mode == RELAXED
        place[0] = 0xA00 + graph
        return int(self.refuses == "instantiate")

    def _set(self, graph, node, params):
        assert graph == 0x1300
        self.told.append(node)
        self.nodes[node] = self._params(params)
        return int(self.refuses == "set")

    def _run(self, graph, stream):
        assert (graph, stream) == (0x1300, self.stream)
        assert self.mode == GLOBAL, "as it was"
        self.graphs.append(list(self.nodes.values()))
        return self.status

    def _gone(self, graph):
        assert self.mode == RELAXED
        self.gone.append(graph)
        return 0


@pytest.fixture
def driver():
    yield Rows()
    gc.collect()
    core._configure_rows(*[0] * 10)
    core._configure_driver(0, 0, 0, 0)


def tensors(count):
    made = [torch.zeros(64) for _ in range(count)]
    assert not any(x.data_ptr() % 16 for x in made)
    return made


def chain(asked, count):
    """Launches of which each reads what the one ahead has written, of sizes 1, 7 and 3."""
    places = tuple((k + 1, k, count + 1, count + 2, count + 3) for k in range(count))
    return native.DeviceRun(tuple((asked.launch, row) for row in places), count + 1, 3)


def expected(made, n=7):
    """What such launches are in turn."""
    row = [x.data_ptr() for x in made]
    return [
        ((n, 1, 1), (128, 1, 1), 0x7000, 64, 0x5000, [row[k + 1], row[k], n, 3, 0])
        for k in range(len(row) - 1)
    ]


def as_nodes(launches):
    return [(f, [*grid, *block, shared], values) for grid, block, f, shared, _, values in launches]


def test_each_kernel_gets_its_own_in_turn(driver):
    asked, made = Asked(), tensors(4)
    run = chain(asked, 3)
    run(*made, 1, 7, 3)
    assert driver.launches == expected(made)
    run(*reversed(made), 1, 7, 3)
    assert driver.launches[3:] == expected(made[::-1])
    assert asked.found == [(NOWHERE, 1, 7, 3)] and not asked.general, "launches of a kernel ask for it once"


def test_kernels_of_other_counts_of_arguments(driver):
    x, y, z = tensors(3)
    one = native.DeviceLauncher(1, 0, lambda device: (0x70, 5, 32, 0, b"", 1), print, {}, (), ())
    two = native.DeviceLauncher(2, 1, lambda device, n: (0x71, n, 64, 8, b"\4", 2), print, {}, (), ())
    run = native.DeviceRun(((one, (2,)), (two, (0, 1, 3))), 3, 1)
    driver.values = {0x70: (8, 8), 0x71: (8, 8, 4, 8, 8)}
    launched = []
    driver._kept = (
        *driver._kept[:2],
        type(driver._kept[2])(lambda f, gx, gy, gz, bx, *_: launched.append((f, gx, bx)) or 0),
    )
    driver.configure()
    run(x, y, z, 9)
    run(x, y, z, 0)
    assert launched == [(0x70, 5, 32), (0x71, 9, 64), (0x70, 5, 32)], "none of no programs"


def test_sizes_that_change_are_asked_for_again(driver):
    asked, made = Asked(), tensors(3)
    run = chain(asked, 2)
    for n in (7, 8, 8, 7):
        run(*made, 1, n, 3)
    assert [row[0][0] for row in driver.launches] == [7, 7, 8, 8, 8, 8, 7, 7]
    assert [row[2] for row in asked.found] == [7, 8, 7]


def test_launches_of_a_kernel_for_other_sizes_each(driver):
    asked, made = Asked(), tensors(3)
    run = native.DeviceRun(((asked.launch, (1, 0, 3, 4, 5)), (asked.launch, (2, 1, 3, 6, 5))), 3, 4)
    for _ in range(3):
        run(*made, 1, 7, 3, 9)
    assert driver.launches == [expected(made, 7)[0], expected(made, 9)[1]] * 3
    assert [row[2] for row in asked.found] == [7, 9]


def odd_address(driver, asked, made):
    made[1] = torch.zeros(65)[1:]


def other_device(driver, asked, made):
    driver.device = 3


def hooked(driver, asked, made):
    asked.chain.append(print)


def not_built(driver, asked, made):
    asked.known = False


def refused(driver, asked, made):
    driver.status = 700


def no_tensor(driver, asked, made):
    made[1] = made[1].data_ptr()


@pytest.mark.parametrize("case", [odd_address, other_device, hooked, not_built, refused, no_tensor])
@pytest.mark.parametrize("count", [2, MANY])
def test_what_is_not_as_before_each_launcher_does_in_turn(driver, case, count):
    asked, made = Asked(), tensors(count + 1)
    run = chain(asked, count)
    for _ in range(SETTLED + 1):
        run(*made, 1, 7, 3)
    before = len(driver.launches)
    assert not asked.general
    case(driver, asked, made)
    if case is not_built:
        run(*made, 1, 9, 3)
    else:
        run(*made, 1, 7, 3)
    general = [args[:2] for args in asked.general]
    all_of_them = [(made[k + 1], made[k]) for k in range(count)]
    if case is odd_address:  # the kernels that have that tensor are built apart for it
        assert not general and len(driver.launches) - before == count
        assert [row[4:] for row in asked.found] == [(), (1,), (2,), *([()] if count > 2 else [])]
    else:
        wanted = all_of_them[:1] if case is no_tensor else all_of_them
        assert [tuple(map(id, x)) for x in general] == [tuple(map(id, x)) for x in wanted]


def test_what_the_driver_refuses_goes_on_where_it_stopped(driver):
    asked, made, seen = Asked(), tensors(5), []

    def launch(*args):
        seen.append(args[0])
        return 700 if len(seen) == 3 else 0

    driver._kept = (*driver._kept[:2], type(driver._kept[2])(launch))
    driver.configure()
    chain(asked, 4)(*made, 1, 7, 3)
    assert len(seen) == 5 and not asked.general, "two, the third refused, the third again, the fourth"


def test_an_error_ends_the_launches(driver):
    asked, made, done = Asked(), tensors(4), []

    def general(*args):
        done.append(args)
        raise RuntimeError("Triton Error [CUDA]")

    bad = native.DeviceLauncher(
        2, 3, lambda device, *sizes: None, general, asked.settings, ("enter",), (asked.chain,)
    )
    rows = ((asked.launch, (1, 0, 4, 5, 6)), (bad, (2, 1, 4, 5, 6)), (asked.launch, (3, 2, 4, 5, 6)))
    with pytest.raises(RuntimeError, match="Triton Error"):
        native.DeviceRun(rows, 4, 3)(*made, 1, 7, 3)
    assert len(done) == 1 and driver.launches == expected(made)[:1]


def test_an_error_of_find_comes_through_and_nothing_is_launched(driver):
    def find(device, *sizes):
        raise KeyError("form")

    launch = native.DeviceLauncher(1, 0, find, print, {}, (), ())
    with pytest.raises(KeyError, match="form"):
        native.DeviceRun(((launch, (0,)),), 1, 0)(*tensors(1))
    assert not driver.launches


def test_launches_that_come_again_become_one_graph(driver):
    asked, made = Asked(), tensors(MANY + 1)
    run = chain(asked, MANY)
    for _ in range(SETTLED):
        run(*made, 1, 7, 3)
    assert driver.launches == expected(made) * SETTLED and not driver.nodes
    for _ in range(4):
        run(*made, 1, 7, 3)
    assert driver.graphs == [as_nodes(expected(made))] * 4 and not driver.told
    assert len(driver.launches) == SETTLED * MANY
    assert driver.behind == [None, *range(0x100, 0x100 + MANY - 1)], "each behind the one ahead"
    del run
    gc.collect()
    assert driver.gone == [0x1300, 0x900] and driver.mode == GLOBAL


@pytest.mark.parametrize("count", [FEWEST - 1, FEWEST])
def test_few_launches_are_no_graph(driver, count):
    asked, made = Asked(), tensors(count + 1)
    run = chain(asked, count)
    for _ in range(SETTLED + 3):
        run(*made, 1, 7, 3)
    graphs = 3 if count == FEWEST else 0
    assert len(driver.graphs) == graphs and len(driver.launches) == (SETTLED + 3 - graphs) * count


def test_launches_stay_single_where_no_graph_is_wanted(driver):
    asked, made = Asked(), tensors(MANY + 1)
    places = tuple((k + 1, k, MANY + 1, MANY + 2, MANY + 3) for k in range(MANY))
    run = native.DeviceRun(tuple((asked.launch, row) for row in places), MANY + 1, 3, graphs=False)
    for _ in range(SETTLED + 3):
        run(*made, 1, 7, 3)
    assert driver.launches == expected(made) * (SETTLED + 3) and not driver.nodes


def settled(driver, asked=None):
    """A run that is a graph now, and its tensors."""
    made = tensors(MANY + 1)
    run = chain(asked or Asked(), MANY)
    for _ in range(SETTLED + 1):
        run(*made, 1, 7, 3)
    assert len(driver.graphs) == 1
    return run, made


def test_a_graph_is_told_of_memory_that_moved(driver):
    run, made = settled(driver)
    made[0], made[MANY] = tensors(2)
    run(*made, 1, 7, 3)
    assert driver.told == [0x100, 0x100 + MANY - 1] and driver.graphs[-1] == as_nodes(expected(made))
    run(*made, 1, 7, 3)
    assert len(driver.told) == 2, "what stays is not told again"


def test_where_much_moves_at_each_call_launches_are_single(driver):
    run, made = settled(driver)
    before, other = len(driver.launches), tensors(MANY + 1)
    for row in (other, made, other):
        run(*row, 1, 7, 3)
        assert driver.launches[before:] == expected(row) and not driver.told
        before = len(driver.launches)
    assert len(driver.graphs) == 1


def test_what_has_moved_for_good_is_told(driver):
    run, made = settled(driver)
    other = tensors(MANY + 1)
    run(*other, 1, 7, 3)
    assert not driver.told and len(driver.graphs) == 1
    for _ in range(2):
        run(*other, 1, 7, 3)
        assert driver.graphs[-1] == as_nodes(expected(other))
    assert len(driver.told) == MANY and len(driver.graphs) == 3 and made


def test_other_sizes_make_another_graph(driver):
    run, made = settled(driver)
    run(*made, 1, 8, 3)
    assert driver.gone == [0x1300, 0x900] and driver.launches[-1] == expected(made, 8)[-1]
    driver.nodes.clear()
    for _ in range(SETTLED):
        run(*made, 1, 8, 3)
    assert driver.graphs[-1] == as_nodes(expected(made, 8))


def test_a_stream_that_records_gets_each_launch(driver):
    run, made = settled(driver)
    driver.capturing, before = 1, len(driver.launches)
    run(*made, 1, 7, 3)
    assert driver.launches[before:] == expected(made) and len(driver.graphs) == 1
    driver.capturing = 0
    run(*made, 1, 7, 3)
    assert len(driver.graphs) == 2


def test_another_stream_gets_each_launch_until_it_stays(driver):
    run, made = settled(driver)
    driver.stream, before = 0x6000, len(driver.launches)
    for _ in range(SETTLED):
        run(*made, 1, 7, 3)
    assert {row[4] for row in driver.launches[before:]} == {0x6000} and len(driver.graphs) == 1
    run(*made, 1, 7, 3)
    assert len(driver.graphs) == 2 and len(driver.launches) == before + SETTLED * MANY


@pytest.mark.parametrize("where", ["create", "add", "connect", "instantiate", "set"])
def test_a_graph_that_the_driver_refuses_is_not_tried_again(driver, where):
    asked, made = Asked(early=(where == "connect",)), tensors(MANY + 1)
    run = chain(asked, MANY)
    driver.refuses = where
    for _ in range(SETTLED + 1):
        run(*made, 1, 7, 3)
    made[0] = tensors(1)[0]
    tried, before = len(driver.nodes), len(driver.launches)
    for _ in range(3):
        run(*made, 1, 7, 3)
    assert driver.launches[before:] == expected(made) * 3 and len(driver.nodes) == tried


def test_a_graph_that_the_driver_does_not_launch_is_launched_singly(driver):
    asked = Asked()
    run, made = settled(driver, asked)
    driver.status = 2
    run(*made, 1, 7, 3)
    assert len(asked.general) == MANY, "nor does it launch the kernels"
    driver.status = 0
    run(*made, 1, 7, 3)
    assert driver.launches[-MANY:] == expected(made) and len(driver.graphs) == 2


def test_kernels_that_begin_early_do_so_in_a_graph(driver):
    run, made = settled(driver, Asked(early=(True,)))
    assert driver.graphs == [as_nodes(expected(made))] and driver.behind == [None] * MANY
    between = zip(range(0x100, 0x100 + MANY - 1), range(0x101, 0x100 + MANY), strict=True)
    assert driver.early == [(*pair, [1, 0, 1, 0, 0, 0, 0, 0]) for pair in between]
    run(*made, 1, 7, 3)
    assert len(driver.attributes) == SETTLED * MANY, "as they do when launched singly"


def test_a_driver_that_cannot_let_them_has_them_begin_in_turn(driver):
    driver.configure_rows(early=False)
    _, made = settled(driver, Asked(early=(True,)))
    assert driver.graphs == [as_nodes(expected(made))] and not driver.early
    assert driver.behind == [None, *range(0x100, 0x100 + MANY - 1)]


def test_what_a_recording_watches_is_told_of_each_launch(driver):
    run, made = settled(driver)
    graph = native.DeviceGraph(NOWHERE, (), lambda graph: None)
    graph.watch()
    before = len(driver.launches)
    run(*made, 1, 7, 3)
    graph.unwatch()
    assert driver.launches[before:] == expected(made) and len(driver.graphs) == 1


def test_two_threads_launch_the_same(driver):
    run, made = settled(driver)
    others = [tensors(1)[0], *made[1:]]

    def work(row):
        for _ in range(200):
            run(*row, 1, 7, 3)

    threads = [threading.Thread(target=work, args=(row,)) for row in (made, others)]
    before = len(driver.graphs), len(driver.launches)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graphs, single = driver.graphs[before[0] :], driver.launches[before[1] :]
    assert len(graphs) * MANY + len(single) == 400 * MANY
    assert all(graph in (as_nodes(expected(made)), as_nodes(expected(others))) for graph in graphs)


def test_what_does_not_fit_is_refused(driver):
    asked, (x,) = Asked(), tensors(1)
    row = (asked.launch, (0, 1, 2, 3, 4))
    with pytest.raises(TypeError, match="2 buffers and 3 sizes, not 1"):
        native.DeviceRun((row,), 2, 3)(x)
    for launches, buffers, sizes in (
        ((), 1, 0),
        ((row,), 0, 3),
        ((row,), 2, 2),
        ((row,), 1, 4),
        (((asked.launch, (0, 1)),), 2, 3),
        (((asked.launch, (0, -1, 2, 3, 4)),), 2, 3),
        (((asked.launch, (0, 1, 1, 3, 4)),), 2, 3),
    ):
        with pytest.raises(ValueError, match="DeviceRun"):
            native.DeviceRun(launches, buffers, sizes)
    for wrong in (1, (row, 1), ((print, ()),), [row]):
        with pytest.raises(TypeError):
            native.DeviceRun(wrong, 2, 3)
