"""Guards on tensors and on PyTorch's state: native readings agree with Python's."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze import native
from braze.native import GuardProgram, calibrate, data_ptr, encode, pure, tensor_meta, torch_state

PROGRAMS = (GuardProgram, pure.GuardProgram) if native.native_available else (pure.GuardProgram,)


def function(*args):
    return args


def plain(tensor, **changes):
    """The expectation of the ``tensor`` check that a tensor itself fulfils."""
    names = ("type", "dtype", "device", "sizes", "strides", "requires_grad", "keys")
    row = dict(zip(names, torch_state.metadata(tensor), strict=True))
    return tuple((row | changes).values())


def matches(expected, tensor, symbols=0, relation=None):
    """Whether a tensor fulfils an expectation; C and Python must agree, and `explain` with both."""
    checks = [(0, "tensor", expected)] + ([(-1, "range", relation)] if relation else [])
    answers = []
    for kind in PROGRAMS:
        program = kind([(-1, "local", 0)], checks, [0], symbols)
        answers += [
            program.match(function, (tensor,)) is not None,
            program.explain(function, (tensor,)) is None,
        ]
    assert len(set(answers)) == 1, answers
    return answers[0]


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_everything_is_read_natively_on_the_versions_we_know():
    assert all(native.bind_torch().values()), native.bind_torch()


@pytest.mark.parametrize(
    "sample", torch_state.samples(), ids=lambda t: f"{t.dtype}{tuple(t.shape)}".replace("torch.", "")
)
def test_metadata_agrees_with_python(sample):
    assert tensor_meta(sample) == torch_state.metadata(sample)
    assert matches(plain(sample), sample)


def test_sparse_tensors_have_no_strides():
    sparse = torch.eye(3).to_sparse()
    assert tensor_meta(sparse) == torch_state.metadata(sparse)
    assert matches(plain(sparse), sparse)
    assert not matches(plain(torch.eye(3)), sparse)
    assert not matches(plain(sparse), torch.eye(3))


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(3, 5),
        torch.empty(3),
        torch.empty(4, 3).t(),
        torch.empty(3, 4, dtype=torch.float64),
        torch.empty(3, 4, requires_grad=True),
        torch.nn.Parameter(torch.empty(3, 4), requires_grad=False),
        torch.empty(3, 4, device="meta"),
        torch.empty(0),
        "text",
        None,
    ],
    ids="wider flat transposed double grad parameter meta empty text none".split(),
)
def test_each_difference_is_seen(other):
    assert not matches(plain(torch.empty(3, 4)), other)


def test_inference_and_conjugate_tensors_are_told_by_their_keys():
    with torch.inference_mode():
        inference = torch.empty(3, 4)
    assert not matches(plain(torch.empty(3, 4)), inference)
    value = torch.empty(3, dtype=torch.complex64)
    assert not matches(plain(value), value.conj())


def test_requires_grad_of_what_a_graph_computed():
    leaf = torch.ones(3, requires_grad=True)
    assert matches(plain(leaf * 2), leaf + 1)
    assert not matches(plain(leaf * 2), torch.ones(3))
    expected = plain(leaf * 2)
    with torch.no_grad():
        assert not matches(expected, leaf + 1)


def test_changes_in_place_are_seen():
    tensor = torch.zeros(4, 4)
    program = GuardProgram([(-1, "local", 0)], [(0, "tensor", tensor_meta(tensor))], [0])
    for change in (lambda: tensor.requires_grad_(), lambda: tensor.t_(), lambda: tensor.resize_(2, 2)):
        tensor = torch.zeros(4, 4)
        assert program.match(function, (tensor,)) is not None
        change()
        assert (program.match(function, (tensor,)) is None) == (
            tensor_meta(tensor) != tensor_meta(torch.zeros(4, 4))
        )
    parameter = torch.nn.Parameter(torch.zeros(2))
    program = GuardProgram([(-1, "local", 0)], [(0, "tensor", tensor_meta(parameter))], [0])
    assert program.match(function, (parameter,)) is not None
    parameter.data = torch.zeros(3)
    assert program.match(function, (parameter,)) is None


@pytest.mark.parametrize(
    ("device", "index"),
    [("cpu", -1), ("cpu:0", -1), ("meta:0", -1), ("cuda", -1), ("cuda:0", 0), ("cuda:1", 1)],
)
def test_only_devices_that_are_several_have_a_number(device, index):
    spec = encode.tensor_spec(plain(torch.empty(3), device=torch.device(device)))
    assert spec is not None and spec[3] == index


def test_symbols_in_sizes_and_strides():
    expected = plain(torch.empty(2, 3), sizes=(("sym", 0), 3), strides=(3, 1))
    assert matches(expected, torch.empty(7, 3), symbols=1)
    assert not matches(expected, torch.empty(7, 4), symbols=1)
    assert matches(expected, torch.empty(7, 3), symbols=1, relation=lambda s: s[0] > 5)
    assert not matches(expected, torch.empty(4, 3), symbols=1, relation=lambda s: s[0] > 5)
    square = plain(torch.empty(2, 2), sizes=(("sym", 0), ("sym", 0)), strides=(("sym", 0), 1))
    assert matches(square, torch.empty(6, 6), symbols=1)
    assert not matches(square, torch.empty(6, 5), symbols=1)
    assert not matches(square, torch.empty(6, 6).t(), symbols=1)


def test_parts_of_the_expectation_may_be_left_open():
    loose = plain(torch.empty(2, 3), sizes=(None, 3), strides=None, requires_grad=None, keys=None)
    assert matches(loose, torch.empty(5, 3))
    assert matches(loose, torch.empty(3, 5, requires_grad=True).t())
    assert not matches(loose, torch.empty(5, 4))
    assert matches(plain(torch.empty(2, 3), strides=(None, 1)), torch.empty(2, 6)[:, :3])


def test_symbols_are_shared_between_tensors():
    row = plain(torch.empty(2), sizes=(("sym", 0),))
    for kind in PROGRAMS:
        program = kind(
            [(-1, "local", 0), (-1, "local", 1)], [(0, "tensor", row), (1, "tensor", row)], [0, 1], 1
        )
        assert program.match(function, (torch.ones(4), torch.ones(4))) is not None
        assert program.match(function, (torch.ones(4), torch.ones(5))) is None
        assert program.match(function, (torch.ones(5), torch.ones(5))) is not None


STATES = {
    "grad_mode": (True, torch.no_grad),
    "inference_mode": (False, torch.inference_mode),
    "autocast": ((("cpu", False, torch.bfloat16), True), lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "default_device": (None, lambda: torch.device("meta")),
    "function_modes": (0, lambda: torch.device("meta")),
}


@pytest.mark.parametrize("name", STATES)
def test_state_is_checked(name):
    expected, other = STATES[name]
    for kind in PROGRAMS:
        program = kind([], [(-1, name, expected)], [])
        assert program.match(function, ()) == ()
        with other():
            assert program.match(function, ()) is None
            index, value = program.explain(function, ())
            assert index == 0 and value == torch_state.current(name, expected)
            there = kind([], [(-1, name, value)], [])
            assert there.match(function, ()) == ()
        assert program.match(function, ()) == ()
        assert there.match(function, ()) is None


@pytest.mark.skipif(calibrate.facts() is None, reason="needs libtorch's functions")
def test_autocast_is_compared_without_python_where_all_its_devices_have_numbers():
    cpu, other = ("cpu", False, torch.bfloat16), ("abacus", False, torch.float16)
    kind, cache, rows = encode.state_spec("autocast", (cpu, True))
    assert kind >= 0 and cache == 1 and len(rows) == 1
    for asked in ((other, True), (cpu, other), (other, cpu, False)):
        assert encode.state_spec("autocast", asked)[0] == -1


def test_modes_of_both_kinds_are_counted_together():
    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for kind in PROGRAMS:
        none, two = (kind([], [(-1, "function_modes", n)], []) for n in (0, 2))
        with torch.device("meta"), Dispatched():
            assert none.match(function, ()) is None and two.match(function, ()) == ()
        assert none.match(function, ()) == () and two.match(function, ()) is None


def test_default_dtype_and_determinism():
    for kind in PROGRAMS:
        dtype = kind([], [(-1, "default_dtype", torch.float32)], [])
        fixed = kind([], [(-1, "deterministic", False)], [])
        assert dtype.match(function, ()) == () == fixed.match(function, ())
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        try:
            assert dtype.match(function, ()) is None
            assert fixed.match(function, ()) is None
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)


def test_parameters_of_a_module():
    module = torch.nn.Linear(3, 4)
    nodes = [(-1, "local", 0), (0, "dict", "_parameters"), (1, "item", "weight"), (0, "dict", "training")]
    checks = [(0, "type", torch.nn.Linear), (2, "tensor", tensor_meta(module.weight)), (3, "equal", True)]
    program = GuardProgram(nodes, checks, [2])
    for _ in range(3):
        (weight,) = program.match(function, (module,))
        assert weight is module.weight
    module.eval()
    assert program.match(function, (module,)) is None
    module.train()
    assert program.match(function, (module,)) is not None
    module.weight = torch.nn.Parameter(torch.zeros(4, 3))
    assert program.match(function, (module,))[0] is module.weight
    module.half()
    assert program.match(function, (module,)) is None


def test_data_ptr_is_that_of_the_view():
    tensor = torch.arange(10.0)
    assert data_ptr(tensor[3:]) == tensor[3:].data_ptr() == tensor.data_ptr() + 12
    assert data_ptr(torch.nn.Parameter(tensor)) == tensor.data_ptr()
    with pytest.raises((TypeError, AttributeError)):
        data_ptr("text")


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_without_libtorchs_functions_tensors_are_read_through_python(monkeypatch):
    tensor = torch.zeros(2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "_found", [None])
        expected = plain(tensor, sizes=(("sym", 0), 3))
        program = GuardProgram([(-1, "local", 0)], [(0, "tensor", expected), (-1, "grad_mode", True)], [0], 1)
        assert tensor_meta(tensor) == torch_state.metadata(tensor)
    assert program.match(function, (tensor,)) is not None
    assert program.match(function, (torch.zeros(5, 3),)) is not None
    assert program.match(function, (torch.zeros(2, 4),)) is None
    with torch.no_grad():
        assert program.match(function, (tensor,)) is None


def test_calibration_leaves_the_state_alone():
    before = [torch_state.current(name) for name in STATES]
    calibrate.calibrate() if native.native_available else None
    assert [torch_state.current(name) for name in STATES] == before


def test_walks_do_not_keep_tensors():
    import sys

    tensor = torch.zeros(3)
    program = GuardProgram([(-1, "local", 0)], [(0, "tensor", tensor_meta(tensor))], [0])
    before = sys.getrefcount(tensor)
    for _ in range(100):
        program.match(function, (tensor,))
    assert sys.getrefcount(tensor) == before


# -- tensors over arrays of numpy


def tensor_of(value, key="writable", inputs=(1,)):
    """What each implementation reads as the tensor over an array; they must agree."""
    nodes = [(-1, "local", 0), (0, "tensor_of", key)]
    found = [kind(nodes, [], inputs).match(function, (value,)) for kind in PROGRAMS]
    told = [kind(nodes, [], inputs).explain(function, (value,)) for kind in PROGRAMS]
    assert len({row is None for row in found}) == 1
    assert [row is None for row in told] == [row is not None for row in found]
    return found[0]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "float16", "float64", "complex64"])
def test_a_tensor_over_an_array_is_read(dtype):
    array = np.zeros((2, 3), dtype).T
    (made,) = tensor_of(array)
    assert torch_state.metadata(made) == torch_state.metadata(torch.from_numpy(array))
    assert made.data_ptr() == array.ctypes.data
    made.fill_(1)
    assert array.all()


def test_the_tensor_holds_the_array():
    array = np.full(1000, 3.0)
    watched = weakref.ref(array)
    (made,) = tensor_of(array)
    del array
    assert watched() is not None and made.sum() == 3000
    del made
    assert watched() is None


def test_arrays_that_may_not_be_written_are_others():
    array = np.zeros(3)
    assert tensor_of(array, "read-only") is None
    array.flags.writeable = False
    assert tensor_of(array) is None


@pytest.mark.parametrize(
    "value",
    [
        3,
        None,
        [1.0],
        torch.ones(2),
        np.float64(2),
        np.ndarray,
        np.zeros(3)[::-1],
        np.zeros(3, ">f4"),
        np.array([None]),
        np.zeros(2, "f4,i4"),
        np.ma.masked_array([1.0]),
        np.zeros(3).view(np.recarray),
    ],
    ids=repr,
)
def test_nothing_else_is_made_a_tensor(value):
    assert tensor_of(value) is None


def test_a_tensor_over_an_array_is_checked_and_binds_symbols():
    nodes = [(-1, "local", 0), (0, "tensor_of", "writable")]
    like = torch.zeros(3, 4)
    checks = [(1, "tensor", plain(like, sizes=(("sym", 0), 4), strides=(4, 1)))]
    for kind in PROGRAMS:
        program = kind(nodes, checks, [1], 1)
        for n in (3, 5, 3, 3, 3, 3, 7):  # the C walk remembers what held
            assert program.match(function, (np.zeros((n, 4), np.float32),)) is not None
            assert program.match(function, (np.zeros((n, 4)),)) is None
            assert program.match(function, (np.zeros((n, 5), np.float32),)) is None
            assert program.match(function, (torch.zeros(n, 4),)) is None


#: of which a tensor is made; of the others none is, or the one that PyTorch makes
OF_NUMBERS = [
    [1, -2],
    [[1, 2], (3, 4)],
    [],
    [[], []],
    [0, 127],
    [2.5, 1],
    [float("nan"), -0.0, 1e300],
    [True],
]
OTHERS = [
    [[1], [2, 3]], [[], [1]], [1, [2]], [[1], 2], [2**62, 2**63], [2**70], [-129, 300], [70000], [1 << 40], [True, 2], [True, 2.5],
    ["a"], [None], [np.float32(1)], (1, 2), 3, [torch.ones(1)], [[[[[[[[[1]]]]]]]]], [10**400, 1.5],
]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", ["", "int64", "int32", "int16", "int8", "uint8", "float32", "float64", "float16"]
)
def test_a_tensor_of_a_list_of_numbers_is_that_of_pytorch(dtype):
    nodes = [(-1, "local", 0), (0, "tensor_of_numbers", dtype)]
    for value in [*OF_NUMBERS, *OTHERS]:
        found = [kind(nodes, [], [1]).match(function, (value,)) for kind in PROGRAMS]
        made = native.tensor_of_numbers(value, dtype)
        found.append(None if made is None else (made,))
        try:
            expected = torch.tensor(value, dtype=getattr(torch, dtype) if dtype else None)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            assert found == [None] * len(found)
            continue
        for each in found:
            if each is not None:
                assert (each[0].dtype, repr(each[0].tolist())) == (expected.dtype, repr(expected.tolist()))
        if value in OF_NUMBERS[:5] and dtype not in ("uint8", "float16"):
            assert None not in found


def others_run(f):
    """How often of 100 times another thread that waits runs while a function does."""
    ran, kept, go, over, count = [], [], threading.Semaphore(0), threading.Event(), 0

    def other():
        while not over.is_set():
            go.acquire()
            ran.append(True)

    thread, before = threading.Thread(target=other), sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread.start()
    try:
        for _ in range(100):
            go.release()
            sum(range(3000))  # it has woken up by now
            seen = len(ran)
            kept.append(f())
            count += len(ran) != seen
            time.sleep(0)
    finally:
        sys.setswitchinterval(before)
        over.set()
        go.release()
        thread.join()
    return count


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_no_other_thread_runs_while_a_tensor_of_a_list_is_read():
    """It would end what the walk has borrowed: the process died."""
    program = native.GuardProgram([(-1, "local", 0), (0, "tensor_of_numbers", "")], [], [1])
    assert any(others_run(lambda: torch.tensor([1, 2])) for _ in range(20)), (
        "on a loaded machine it may not have woken up"
    )
    assert others_run(lambda: program.match(function, ([1, 2],))) == 0


def test_the_collector_goes_on():
    before = gc.isenabled()
    tensor_of(np.zeros(3))
    assert gc.isenabled() is before
    gc.disable()
    try:
        tensor_of(np.zeros(3))
        assert not gc.isenabled()
    finally:
        if before:
            gc.enable()


# -- numbers below zero


@pytest.mark.parametrize("value", [-5, 3, 0, -(2**62), -(2**80), True, -1.5, "a", None])
def test_minus_a_number_is_read(value):
    nodes = [(-1, "local", 0), (0, "negative", None)]
    found = [kind(nodes, [], (1,)).match(function, (value,)) for kind in PROGRAMS]
    told = [kind(nodes, [], (1,)).explain(function, (value,)) for kind in PROGRAMS]
    assert found[0] == found[1] == ((-value,) if type(value) is int else None)
    assert [row is None for row in told] == [type(value) is int] * 2
