"""Launcher and Segment: addresses and sizes arrive as given."""

import ctypes

from braze.native import Launcher, Segment, data_ptr, native_available, pure

LAUNCHERS = (Launcher, pure.Launcher) if native_available else (Launcher,)
SEGMENTS = (Segment, pure.Segment) if native_available else (Segment,)
VOID = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))
STATUS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))


def recorder(kind, nbuffers, nsizes, status=None):
    """A C function that notes what it was given, and the notes."""
    notes = []

    def body(buffers, sizes):
        notes.append(([buffers[i] for i in range(nbuffers)], [sizes[i] for i in range(nsizes)]))
        return status

    function = kind(body)
    return function, ctypes.cast(function, ctypes.c_void_p).value, notes


def test_launcher_passes_addresses_and_sizes():
    for kind in LAUNCHERS:
        for release in (True, False):
            keep, address, notes = recorder(VOID, 2, 3)
            launch = kind(address, 2, 3, release)
            assert launch(0x1000, 0x2000, 1, -2, 2**40) is None
            assert notes == [([0x1000, 0x2000], [1, -2, 2**40])]
            assert (launch.address, launch.nbuffers, launch.nsizes, launch.release) == (
                address,
                2,
                3,
                release,
            )
            del keep


def test_launcher_takes_many_arguments():
    for kind in LAUNCHERS:
        keep, address, notes = recorder(VOID, 300, 200)
        kind(address, 300, 200)(*range(1, 301), *range(200))
        assert notes == [(list(range(1, 301)), list(range(200)))]
        del keep


def test_launcher_refuses_wrong_counts_and_types():
    keep, address, notes = recorder(VOID, 1, 1)
    for kind in LAUNCHERS:
        launch = kind(address, 1, 1)
        for args in ((), (1,), (1, 2, 3), ("text", 1), (1, "text")):
            try:
                launch(*args)
            except (TypeError, AttributeError):
                continue
            raise AssertionError(f"accepted {args}")
    assert notes == []
    del keep


def test_segment_gives_the_status():
    for kind in SEGMENTS:
        keep, address, notes = recorder(STATUS, 3, 2, status=-7)
        segment = kind(address, "a segment")
        assert segment((0x10, 0x20), 0x30, (4, 5)) == -7
        assert notes == [([0x10, 0x20, 0x30], [4, 5])]
        del keep
        keep, address, notes = recorder(STATUS, 1, 0, status=0)
        assert kind(address, "a segment")(()) == 0
        assert notes == [([None], [])]
        del keep


def test_data_ptr_of_an_address_is_itself():
    assert data_ptr(12345) == 12345
    assert pure.data_ptr(12345) == 12345
