"""What tests of the frame hook share: functions to watch, and how to watch them."""

from braze import native


def needs_hook(test):
    """Nothing to test on the pure-Python core."""

    def skipped():
        return None

    chosen = test if native.hook_available() else skipped
    chosen.__name__ = test.__name__
    return chosen


def raised(kind, call):
    """The exception of that kind that a call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("did not raise")


def add(a, b=2, *args, c=3, **kwargs):
    total = a + b
    return total


def failing():
    raise KeyError("original")


def traced(handler, callable, *args, **kwargs):
    return native.call_traced(handler, callable, args, kwargs)
