"""The machine of tensor programs: what it makes can be read and run, and what it compares with would notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.fuzz import metamorphic
from tests.fuzz.tensors import check as checking
from tests.fuzz.tensors import oracle, watching
from tests.fuzz.tensors.generate import STEPPING, begun, generate, taken
from tests.fuzz.tensors.observe import Seen, observe
from tests.fuzz.tensors.program import Given, Line, TensorProgram, parsed

TEXT = """
def program(x0, x1):
    v0 = x0[1:]
    with torch.no_grad():
        v1 = v0 * 2
    v0.add_(x1)
    v2, v3 = v1.max(0)
    return (v1, v3)
"""
GIVEN = (
    Given("x0", ("numbers((3, 4), 'float32', 0, 'small')",)),
    Given("x1", ("numbers((4,), 'float32', 1, 'small')",)),
)


def test_a_program_reads_back_as_it_was_written():
    program = parsed(TEXT, GIVEN)
    assert program.lines[1] == Line(("v1",), "with torch.no_grad():\n    v1 = v0 * 2")
    assert [line.targets for line in program.lines] == [("v0",), ("v1",), (), ("v2", "v3")]
    assert parsed(program.text(), GIVEN) == program


def test_without_a_statement_go_those_that_need_it():
    program = parsed(TEXT, GIVEN)
    smaller = program.with_lines(list(program.lines[1:]))
    assert smaller.lines == () and smaller.results == ()
    assert any(len(one.lines) == 3 and "v1" not in one.text() for one in program.smaller())


def test_a_program_runs_and_passes():
    assert checking.check(parsed(TEXT, GIVEN, backend="eager")) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("values", "return x * 2 + (x == 0.25)"),
        ("dtype", "return x.double()"),
        ("strides", "return x.t().contiguous().t()"),
        ("aliasing", "return x.view_as(x)"),
        ("changed", "x.add_(0.5); return x * 2 - 1"),
        ("error", "raise ValueError(x.shape)"),
        ("grad_fn", "return (x * 2).detach().requires_grad_()"),
        ("gradient values", "return x * 2 + (x - x.detach())"),
        ("values", "return torch.where(x == 0, -0.0, x * 2)"),
    ],
)
def test_what_differs_from_eager_is_noticed(kind, text):
    """Another function in the place of the compiled one."""
    given = (Given("x0", ("numbers((8, 12), 'float32', 0, 'small')",), "leaf" if "grad" in kind else ""),)
    program = TensorProgram(given, (Line(("v0",), "v0 = x0 * 2"),), ("v0",), backward=bool(given[0].grad))
    scope = {"torch": torch}
    exec(f"def other(x):\n    {text}\n", scope)
    theirs = checking.seen(program, program.function(), 0)
    ours = checking.seen(program, lambda x: (scope["other"](x),), 0)
    found = checking.differs(program, 0, ours, theirs)
    assert found is not None and found.kind == kind


def test_a_mode_that_a_compiled_call_leaves_set_is_noticed_and_ends_with_the_program(monkeypatch):
    """With gradients off, all later programs of the process passed."""

    def compile(fn: Callable[..., Any], **words: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            result = fn(*args)
            torch.set_grad_enabled(False)
            return result

        return call

    monkeypatch.setattr(checking.braze, "compile", compile)
    found = checking.check(parsed(TEXT, GIVEN))
    assert found is not None and found.kind == "left" and "grad mode" in found.text
    assert torch.is_grad_enabled()


def test_rounding_is_not_taken_for_an_error():
    """Sums that cancel: another order is as good as eager's."""
    given = (Given("x0", ("numbers((16, 33), 'float32', 0, 'large')",)),)
    program = TensorProgram(
        given, (Line(("v0",), "v0 = (x0 * 0.1).sum(0) - (x0 * 0.1).sum(0).mean()"),), ("v0",)
    )

    def other(x):
        y = x * 0.1
        return ((y.flip(0).sum(0) - y.sum() / 33),)

    theirs, ours = (checking.seen(program, fn, 0) for fn in (program.function(), other))
    assert not torch.equal(ours.values["result 0"], theirs.values["result 0"])
    assert checking.differs(program, 0, ours, theirs) is None


def test_the_sign_of_a_zero_that_eager_gives_by_place_may_be_either():
    given = (Given("x0", ("numbers((41,), 'float32', 0, 'special')",)),)
    texts = {
        "v0 = F.softshrink(x0)": False,
        "v0 = x0.view(1, 41).clamp(-0.0, 0.0).max(0).values": False,
        "v0 = x0.view(1, 41).clamp(-0.0, 0.0).aminmax(dim=0).min": False,
        "v0 = x0 * 0.5": True,
    }
    for text, fails in texts.items():
        program = TensorProgram(given, (Line(("v0",), text),), ("v0",))
        theirs = checking.seen(program, program.function(), 0)
        ours = checking.seen(program, lambda x, fn=program.function(): (-(-fn(x)[0] + 0.0) + 0.0,), 0)
        assert bool(checking.differs(program, 0, ours, theirs)) is fails


@pytest.mark.parametrize(("inner", "open_"), [(1, True), (2, False)])
def test_the_sign_of_a_zero_that_is_a_sum_of_one_product_may_be_either(inner, open_):
    """Eager's kernels for matrices begin with 0, or with the product, by the size of the matrices."""
    text = f"def program(x0):\n    v0 = x0 @ torch.ones({inner}, 3)\n    return (v0,)\n"
    found = numbers_by(text, f"torch.full((3, {inner}), -0.0, dtype=t_float32)")
    theirs = found[0]["result 0"]
    assert not told(theirs, "result 0", found)
    assert bool(told(-theirs, "result 0", found)) is not open_


def test_a_product_in_inference_mode_is_told_by_what_it_is_made_of():
    """PyTorch hands `tensordot` over whole there."""
    text = "def program(x0):\n    v0 = torch.tensordot(x0, torch.ones(1, 3), 1)\n    return (v0,)\n"
    program = parsed(
        text, (Given("x0", ("torch.full((3, 1), -0.0, dtype=t_float32)",)),), around="inference_mode"
    )
    theirs, ours = (checking.seen(program, program.function(), 0) for _ in range(2))
    ours.values["result 0"] = -theirs.values["result 0"]
    assert checking.differs(program, 0, ours, theirs) is None


@pytest.mark.parametrize(
    ("text", "numbers", "open_"),
    [
        ("F.softshrink(x0).signbit()", "0.25, -0.25", True),
        ("F.softshrink(x0).diff().signbit()", "0.25, -0.25", True),
        ("(x0 * 0.0).signbit()", "0.25, -0.25", False),
        ("torch.var_mean(x0)[1].count_nonzero()", "-1.7e308, 0.5, 1.7e308", True),
        ("torch.var_mean(x0)[1].count_nonzero()", "-1.5, 0.5, 1.5", False),
        ("x0 > 0.3", "0.3, 0.5", False),
    ],
)
def test_what_follows_from_a_choice_that_eager_leaves_open_may_be_otherwise(text, numbers, open_):
    """Bools and whole numbers, which rounding alone does not excuse."""
    given = (Given("x0", (f"torch.tensor([{numbers}], dtype=t_float64)",)),)
    program = TensorProgram(given, (Line(("v0",), f"v0 = {text}"),), ("v0",))
    theirs, ours = (checking.seen(program, program.function(), 0) for _ in range(2))
    ours.values["result 0"] = 1 - theirs.values["result 0"].long()
    if theirs.values["result 0"].dtype is torch.bool:
        ours.values["result 0"] = ours.values["result 0"].bool()
    assert (checking.differs(program, 0, ours, theirs) is None) is open_


def test_poisoned_numbers_are_far_from_any_result():
    theirs, exact = torch.ones(3), torch.ones(3, dtype=torch.float64)
    assert oracle.verdict(torch.tensor([1.0, 3.4e38, 1.0]), theirs, exact, [exact])
    assert not oracle.verdict(torch.ones(3), theirs, exact, [exact])


def test_errors_and_what_was_written_before_them_are_seen():
    def fails(x):
        x.add_(1)
        raise IndexError("no\nmore")

    seen = observe(fails, [torch.zeros(2)], (Given("x0", ("",)),), "", False)
    assert seen.error == ("IndexError", "no")
    assert seen.values["argument x0"].tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(8))
def test_programs_do_in_graphs_what_they_do_in_eager(seed):
    """A few of the programs, so that the machine itself is under test; `make fuzz` runs others each time."""
    program = generate(seed)
    assert program.lines
    assert checking.check(program) is None


def test_guises_differ_and_keep_the_meaning():
    program = generate(3)
    rng = metamorphic.random.Random(0)
    for name, guise in (metamorphic.GUISES | metamorphic.GUISES_OF_HALVES).items():
        other = guise(program, rng)
        fn, changed = program.function(), other.function()
        if name in ("renamed", "reordered", "nested"):
            theirs, ours = checking.seen(program, fn, 0), checking.seen(other, changed, 0)
            assert checking.differs(program, 0, ours, theirs) is None, name
    assert metamorphic.generate(4).source().count("def check") == 4


def test_programs_of_half_types_have_a_guise_more():
    """Their numbers are eager's to the bit in the others; in this one they are held to float64."""
    seeds = [seed for seed in range(40) if metamorphic.has_halves(generate(seed))]
    assert seeds
    for seed in range(40):
        assert (metamorphic.WIDE in metamorphic.generate(seed).tags()) == (seed in seeds)


def test_what_rounding_decides_may_be_decided_otherwise():
    theirs, sure = torch.tensor([True, False]), torch.tensor([1.0, 0.0])
    assert oracle.decided(~theirs, theirs, [sure, sure])
    assert not oracle.decided(~theirs, theirs, [sure, 1 - sure])
    assert not oracle.decided(theirs, theirs, [sure])


def judged(text: str, ours: Callable[..., Any], calls: str, **settings: Any) -> Any:
    """What is said of a function in the place of a compiled program of one statement."""
    program = TensorProgram(
        (Given("x0", (calls,), "leaf"),), (Line(("v0",), text),), ("v0",), backward=True, **settings
    )
    theirs = checking.seen(program, program.function(), 0)
    return checking.differs(program, 0, checking.seen(program, ours, 0), theirs)


def test_a_derivative_that_eager_takes_by_place_may_be_either() -> None:
    calls = "numbers((41,), 'float32', 0, 'special')"

    def with_gradient(value: float) -> Callable[..., Any]:
        def ours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x.register_hook(lambda g: torch.where(x.isnan(), value, g))
            return (torch.nn.functional.relu6(x),)

        return ours

    assert judged("v0 = F.relu6(x0)", with_gradient(0.0), calls) is None
    assert judged("v0 = F.relu6(x0)", with_gradient(9.0), calls) is not None


def test_gradients_may_be_added_in_any_order() -> None:
    calls = "numbers((41,), 'float64', 0, 'small')"

    def ours(x: torch.Tensor, off: float) -> tuple[torch.Tensor, ...]:
        x.register_hook(lambda g: g + off * g)
        return ((x.sin() * 100 - x.sin() * 100) + x / 3,)

    text = "v0 = (x0.sin() * 100 - x0.sin() * 100) + x0 / 3"
    assert judged(text, lambda x: ours(x, 1e-14), calls) is None
    assert judged(text, lambda x: ours(x, 1e-11), calls) is not None


def test_a_gradient_that_is_lost_in_one_that_another_takes_off_again_may_come_or_go():
    """A quarter, a quarter less and nearly nothing."""
    text = "def program(x0):\n    v0 = x0.abs().sqrt()\n    v1 = x0 * 0.25\n    v2 = x0 * -0.25\n    return (v0, v1, v2,)\n"
    found = numbers_by(text, "torch.full((3,), 3e38, dtype=t_float32)")
    name = "gradient of x0"
    assert (found[0][name].abs() < 1e-19).all()
    assert not told(torch.zeros(3), name, found)
    assert told(torch.full((3,), 0.01), name, found)


def test_two_refusals_of_what_was_written_are_alike() -> None:
    written = (
        "RuntimeError",
        "a variable has been modified by an inplace operation: [torch.FloatTensor [3]]",
    )
    again = (written[0], written[1].replace("3", "4"))
    fewer = (
        "CheckpointError",
        "torch.utils.checkpoint: A different number of tensors was saved during the original forward and recomputation.",
    )
    other = ("RuntimeError", "Trying to backward through the graph a second time")
    for mine, its, checkpoints, alike in (
        (written, again, False, True), (None, written, False, True), (written, None, False, False),
        (written, None, True, True), (other, written, False, False), (other, None, True, False),
        (None, fewer, True, True), (other, fewer, True, False), (fewer, None, False, False),
    ):  # fmt: skip
        ours, theirs = Seen(backward_error=mine), Seen(backward_error=its)
        checking.excuse(ours, theirs, checkpoints)
        assert (ours.backward_error == theirs.backward_error) is alike


def test_a_gradient_of_what_eager_did_not_see_written_is_not_asked_of_ours() -> None:
    """`kron` keeps its arguments without counting their writes."""
    calls = "numbers((3, 2), 'float32', 0, 'small')"
    written = "v0 = (lambda x: (x.kron(x), x.mul_(3))[0])(x0 * 2)"

    def of_what_was_multiplied(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return (torch.kron(y, y),)

    def refused(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        made = torch.kron(y, y) + (y * y).sum() * 0
        y.mul_(3)
        return (made,)

    for ours in (of_what_was_multiplied, refused):
        assert judged(written, ours, calls) is None
    assert judged("v0 = (x0 * 2).kron(x0 * 2)", of_what_was_multiplied, calls) is None
    assert judged("v0 = (x0 * 2).kron(x0 * 2)", refused, calls).kind == "backward error"
    assert judged("v0 = (x0 * 2).kron(x0 * 3)", of_what_was_multiplied, calls).kind == "values"
    # of a hook on a view that was written PyTorch dies: what the judge computes is as little a view as what kron gives
    assert watching.kron(torch.ones(3, 2), torch.ones(2))._base is None


def test_errors_that_are_eagers_accidents_excuse_a_backward_that_runs_or_refuses_in_other_words() -> None:
    """A hook that got None, before an operation without a derivative too; a view whose storage was set, made again on its base, behind what was
    written over, or where ours meets that first; what was saved and detached behind the graph; a leaf that was turned. Ours may not raise what eager does not."""
    hook = ("TypeError", "unsupported operand type(s) for *: 'NoneType' and 'int'")
    beyond = (
        "RuntimeError",
        "setStorage: sizes [3], strides [1], storage offset 3, and itemsize 2 requiring a storage size of 12 are out of bounds for storage of size 8",
    )
    overflown, small = (
        ("RuntimeError", f"Storage size calculation overflowed with sizes={sizes}") for sizes in ([], [1, 1])
    )
    before = ("RuntimeError", "Tensor: invalid storage offset -8")
    underived = ("RuntimeError", "derivative for set_ is not implemented")
    other = ("RuntimeError", "derivative for aten::aminmax is not implemented")
    missing = ("NotImplementedError", "the derivative for 'nextafter' is not implemented.")
    detached = (
        "RuntimeError",
        "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_().",
    )
    over = ("RuntimeError", "one of the variables ... has been modified by an inplace operation: ...")
    turned = (
        "RuntimeError",
        "The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 1",
    )
    for mine, its, alike in (
        (underived, over, True), (other, over, True), (missing, over, True), (over, other, False), (None, hook, True), (hook, None, False), (underived, beyond, True), (beyond, underived, False),
        (over, beyond, True), (beyond, over, False), (over, underived, True), (over, None, False),
        (None, beyond, False), (underived, None, False), (underived, hook, False),
        (overflown, small, True), (before, small, True), (underived, small, True), (small, None, False), (None, small, False), (other, small, False),
        (other, hook, True), (other, None, False), (None, other, False), (None, detached, True), (detached, None, False),
        (turned, over, True), (turned, None, False), (turned, detached, False), (over, turned, False), (over, detached, True), (detached, over, False),
    ):  # fmt: skip
        ours, theirs = Seen(backward_error=mine), Seen(backward_error=its)
        checking.excuse(ours, theirs)
        assert (ours.backward_error == theirs.backward_error) is alike


def test_what_the_kernel_of_roll_asserts_under_autocast_is_not_asked_of_ours() -> None:
    given = (Given("x0", ("numbers((4,), 'float16', 0, 'small')",)),)
    for text, excused in (("x0.roll(1, 0)", True), ("torch.cat([x0, x0])", False)):
        program = parsed(f"def program(x0):\n    v0 = {text}\n    return (v0,)\n", given, around="autocast")
        theirs = checking.seen(program, program.function(), 0)
        assert theirs.error == ("RuntimeError", checking.NOT_ROLLED)
        assert (checking.differs(program, 0, Seen(), theirs) is None) is excused
        assert checking.differs(program, 0, Seen(error=("RuntimeError", "another")), theirs) is not None


def test_attention_is_not_asked_of_what_has_no_heads() -> None:
    """PyTorch before 2.13 divides by the number of heads, and the process dies."""
    for shape, asked in (("(1, 0, 2, 4)", False), ("(1, 2, 0, 4)", True), ("(0, 2, 4)", True)):
        given = (Given("x0", (f"numbers({shape}, 'float32', 0, 'small')",)),)
        making = begun(random.Random(0), TensorProgram(given, (), ()))
        line = Line(("v0",), "v0 = F.scaled_dot_product_attention(x0, x0, x0)")
        assert taken(making, line) is asked


def test_no_program_makes_as_many_elements_as_a_large_argument_says(monkeypatch) -> None:
    """Where there is memory for them, they take minutes to fill: the statement is not so much as run."""
    given = (
        Given("x0", ("numbers((2,), 'float32', 0, 'small')",) * 2),
        Given("n0", ("3", "2147483648")),
    )
    making = begun(random.Random(0), TensorProgram(given, (), ()))
    ran = []
    for name in ("full", "arange"):
        monkeypatch.setattr(torch, name, lambda *args: ran.append(args))
    monkeypatch.setattr(torch.Tensor, "repeat", lambda *args: ran.append(args))
    for text in ("torch.full((n0,), 2.5)", "torch.arange(n0)", "x0.repeat(n0, *[1] * x0.dim())"):
        assert not taken(making, Line(("v0",), f"v0 = {text}"))
    assert not ran
    assert taken(making, Line(("v0",), "v0 = x0.clamp(max=n0)"))


def test_a_mean_taken_off_is_as_near_as_the_numbers_it_is_of() -> None:
    """Welford's mean of quarters is not their sum by their count; a row of what is left has the rounding of the whole numbers."""
    text = "def program(x0):\n    v0 = F.batch_norm(x0, None, None, training=True)\n    v1 = x0.var(0)\n    return (v0, v1,)\n"
    program = parsed(text, (Given("x0", ("numbers((7, 3), 'float64', 0, 'small') + 1000",)),))
    theirs = checking.seen(program, program.function(), 0)
    samples = checking.in_double(program, 0, checking.smallest(program, theirs))
    for name, value in theirs.values.items():
        near, far = value + 1e-13, value + 1e-6
        rounded = [sample[name] for sample in samples.first()]
        told = [oracle.verdict(v, value, samples.exact[name], rounded) for v in (near, far)]
        if name.startswith("result"):
            assert not told[0] and told[1]


def test_a_step_is_not_asked_of_rounded_numbers():
    assert STEPPING.search("v1 = torch.copysign(v0, x0)")
    assert not STEPPING.search("v1 = torch.sign(v0)")


def test_the_sign_of_what_is_no_number_is_not_asked():
    """That of an infinity divided by three is by place in eager."""
    for kind, asked in (("small", True), ("special", False)):
        program = TensorProgram((Given("x0", (f"numbers((40,), 'float32', 0, '{kind}')",)),), (), ())
        making = begun(random.Random(0), program)
        assert taken(making, Line(("v0",), "v0 = x0.signbit()")) is asked
        assert taken(making, Line(("v0",), "v0 = x0.sign()"))


def numbers_by(text: str, calls: str) -> tuple[dict[str, Any], Any, Any]:
    """A program's numbers in eager, in float64 and in float64 with rounding."""
    program = parsed(text, (Given("x0", (calls,), "leaf"),), backward=True)
    theirs = checking.seen(program, program.function(), 0)
    samples = checking.in_double(program, 0, checking.smallest(program, theirs))
    return theirs.values, samples.exact, samples.first()


def told(value: torch.Tensor, name: str, found: tuple[dict[str, Any], Any, Any], signs: bool = True) -> str:
    theirs, exact, rounded = found
    return oracle.verdict(value, theirs[name], exact[name], [r[name] for r in rounded], signs)


def test_a_summand_that_float64_loses_too_may_come_back():
    """Half, a tiny number and less than half: 0 or the tiny number, by the order."""
    text = "def program(x0):\n    v0 = ((x0 * 0 + 0.5) + x0) - 0.5\n    return (v0,)\n"
    found = numbers_by(text, "numbers((5,), 'float32', 0, 'small') * 1e-38 + 2e-38")
    assert not told(torch.full((5,), 2e-38), "result 0", found)
    assert told(torch.full((5,), 1e-3), "result 0", found)


def test_the_mean_of_one_number_many_times_may_be_a_unit_off():
    """Eager's gives that number, and a norm of it nothing."""
    text = "def program(x0):\n    v0 = F.layer_norm(x0, (17,))\n    return (v0,)\n"
    found = numbers_by(text, "torch.full((28, 17), 0.1, dtype=t_float32)")
    assert not told(torch.full((28, 17), -4.7e-6), "result 0", found)
    assert told(torch.full((28, 17), -1e-4), "result 0", found)


def test_the_mean_of_one_number_that_was_rounded_may_be_a_unit_off():
    """Its rounding and that of the mean may cancel in the float64 runs, in one place of hundreds in all of them."""
    text = "def program(x0):\n    v0 = F.layer_norm(x0 * 0.1, (17,))\n    return (v0,)\n"
    found = numbers_by(text, "torch.ones((28, 17), dtype=t_float32)")
    assert not told(torch.full((28, 17), -4.7e-6), "result 0", found)
    assert told(torch.full((28, 17), -1e-4), "result 0", found)


@pytest.mark.parametrize(
    ("given", "cast", "copies"),
    [("float32", "to(t_float64)", True), ("float64", "to(t_float64)", False), ("float64", "float()", True)],
)
def test_a_cast_copies_in_float64_where_it_does_in_the_programs_types(given, cast, copies):
    """A kernel that is a few units off passes, and one that takes the cast for a copy, or a copy for none, does not."""
    program = parsed(
        f"def program(x0):\n    v0 = x0.{cast}\n    x0.add_(1)\n    v1 = v0 / 3\n    return (v1,)\n",
        (Given("x0", (f"numbers((5,), '{given}', 0, 'small')",)),),
    )
    theirs = checking.seen(program, program.function(), 0)
    for other, near in ((0.0, True), (1 / 3 if copies else -1 / 3, False)):
        ours = checking.seen(program, lambda x: (program.function()(x)[0] * (1 + 4e-16) + other,), 0)
        assert (checking.differs(program, 0, ours, theirs) is None) is near
    exact, eager = checking.in_double(program, 0, torch.float32).exact, theirs.values["result 0"]
    torch.testing.assert_close(exact["result 0"], eager.double(), rtol=1e-6, atol=1e-6)


def test_a_cast_to_less_on_the_way_leaves_the_room_of_its_type():
    text = "def program(x0):\n    v0 = (x0.to(t_float32) / 3).double()\n    return (v0,)\n"
    for program, near in ((text, True), (text.replace(".to(t_float32)", ""), False)):
        made = parsed(program, (Given("x0", ("numbers((9,), 'float64', 0, 'normal')",)),))
        theirs = checking.seen(made, made.function(), 0)
        ours = checking.seen(made, lambda x, fn=made.function(): (fn(x)[0] * (1 + 1e-7),), 0)
        assert (checking.differs(made, 0, ours, theirs) is None) is near


def test_what_cancels_may_be_nothing_at_all():
    """A mean of nearly nothing by itself is one, of nothing no number."""
    text = "def program(x0):\n    v0 = x0.mean(0)\n    v1 = v0 / v0\n    return (v1,)\n"
    for numbers, open_ in (("0.1, 0.2, -0.3", True), ("0.1, 0.2, 0.3", False)):
        found = numbers_by(text, f"torch.tensor([{numbers}], dtype=t_float32).reshape(3, 1)")
        assert bool(told(torch.full((1,), torch.nan), "result 0", found)) is not open_


def test_what_follows_from_a_mean_that_cancels_is_open():
    """The last one's numbers have a sum of sizes beyond all doubles. ``var_mean`` divides as it goes, so that it leaves something of numbers that are exact, too."""
    text = "v0 = torch.var_mean(x0, -1)[1] != 0"
    for given, open_ in (("-1.0, -2.0, 0.0, 3.0", True), ("1.0, 2.0, 0.0, 3.0", False)):
        calls = f"torch.tensor([{given}], dtype=t_float64).reshape(1, 4)"
        for found in (False, True):
            other = judged(text, lambda x, found=found: (torch.tensor([found]),), calls)
            assert (other is None) is (open_ or found)
    calls = "torch.tensor([1.0, -1.7e308, 1.0, 1.7e308], dtype=t_float64).reshape(1, 4)"
    for slope, open_ in ((0.0, True), (1.0, True), (50.0, False)):

        def ours(x: torch.Tensor, slope: float = slope) -> tuple[torch.Tensor, ...]:
            total = x.mean(1)
            total.register_hook(lambda g: torch.full_like(g, slope))
            return (torch.nn.functional.relu6(total),)

        assert (judged("v0 = F.relu6(x0.mean(1))", ours, calls) is None) is open_


def test_a_sum_with_what_is_no_number_is_none_however_large_the_others_are():
    """So that the derivative there is eager's in vectors, or in what is left of them."""
    calls = "torch.tensor([3e38, 3e38, torch.nan, 1.0] * 5, dtype=t_float32).reshape(5, 4)"

    def with_gradient(value: float) -> Callable[..., Any]:
        def ours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            total = x.sum(1)
            total.register_hook(lambda g: torch.where(total.isnan(), value * g, g))
            return (torch.nn.functional.relu6(total),)

        return ours

    text = "v0 = F.relu6(x0.sum(1))"
    assert judged(text, with_gradient(0.0), calls) is None
    assert judged(text, with_gradient(1.0), calls) is None
    assert judged(text, with_gradient(50.0), calls) is not None


@pytest.mark.parametrize("norm", ["layer_norm(x0, (6, 2))", "group_norm(x0, 1)", "group_norm(x0, 3)"])
def test_what_is_left_of_a_number_that_is_its_mean_may_be_nothing(norm):
    """Eager leaves of it what rounding does, which by itself is one, or no number where nothing is left."""
    text = f"def program(x0):\n    v0 = F.{norm}\n    v1 = v0 / v0\n    return (v1,)\n"
    row = (
        [0.0, 0.0, -0.5, 0.5, -2.0, 2.0] if norm.endswith("(x0, 3)") else [0.0, -0.5, 2.25, 2.5, -1.5, -2.75]
    )
    found = numbers_by(text, f"torch.tensor([{row}, {row}], dtype=t_float32)[..., None].expand(2, 6, 2)")
    ours = torch.ones(2, 6, 2)
    ours[:, 0] = torch.nan
    assert not told(ours, "result 0", found)
    ours[:, 3] = torch.nan
    assert told(ours, "result 0", found)


def test_a_norm_whose_sums_overflow_is_nothing_to_go_by():
    text = "def program(x0):\n    v0 = F.layer_norm(x0, (4,))\n    return (v0,)\n"
    found = numbers_by(text, "torch.tensor([[1e200, -1e200, 3.0, 0.0]], dtype=t_float64)")
    assert not told(torch.zeros(1, 4, dtype=torch.float64), "result 0", found)
    assert not told(torch.full((1, 4), torch.nan, dtype=torch.float64), "result 0", found)
    found = numbers_by(text, "torch.tensor([[1e9, -1e9, 3.0, 0.0]], dtype=t_float64)")
    assert told(torch.full((1, 4), torch.nan, dtype=torch.float64), "result 0", found)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("operation", ["var(0)", "std(0)"])
def test_a_variance_whose_differences_overflow_may_be_infinite_or_no_number(operation, columns):
    """Of the same numbers eager's is infinite in one column, and none beside others."""
    text = f"def program(x0):\n    v0 = x0.{operation}.nan_to_num()\n    return (v0,)\n"
    largest = torch.finfo(torch.float64).max
    for numbers, open_ in (
        ((-largest, 0, -2.5, largest, 0, 0), True),
        ((-1e100, 0, -2.5, 1e100, 0, 0), False),
    ):
        found = numbers_by(text, f"torch.tensor({numbers}, dtype=t_float64)[:, None].repeat(1, {columns})")
        for made in (0.0, largest):
            value = torch.full((columns,), made, dtype=torch.float64)
            assert bool(told(value, "result 0", found)) is not open_


@pytest.mark.parametrize("operation", ["sum(0)", "mean(0)", "nansum(0)"])
def test_a_sum_that_leaves_its_type_on_the_way_in_another_order_is_nothing_to_go_by(operation):
    text = f"def program(x0):\n    v0 = x0.{operation}\n    return (v0,)\n"
    for numbers, open_ in (("1.7e308, -1.7e308, -2.5", True), ("1.5, -1.5, -2.5", False)):
        found = numbers_by(text, f"torch.tensor([{numbers}], dtype=t_float64)")
        assert bool(told(torch.tensor(0.0, dtype=torch.float64), "result 0", found)) is not open_


def test_a_double_made_of_rounded_numbers_has_their_room():
    """Of some numbers all throws of the rounding cancel."""
    exact = torch.full((2,), 2.877, dtype=torch.float64)
    moved = [exact + torch.tensor([2e-7, 0.0]).double()] * 4
    near, far = exact + 3e-7, exact + 3e-6
    assert not oracle.verdict(near, exact, exact, moved, dtype=torch.float32)
    assert oracle.verdict(far, exact, exact, moved, dtype=torch.float32)
    assert oracle.verdict(near, exact, exact, [exact] * 4, dtype=torch.float32)


def test_gradients_may_be_divided_before_they_are_added():
    """Three quarters by three, less a quarter."""
    text = "def program(x0):\n    v0 = x0.mean(0)\n    v1 = x0.roll(3, 1)\n    return (v0, v1,)\n"
    found = numbers_by(text, "numbers((3, 7), 'float32', 0, 'small')")
    name = "gradient of x0"
    assert (found[0][name][:, 5] == 0).all()
    assert not told(found[0][name] + torch.eye(7)[5] * 1.5e-8, name, found)
    assert told(found[0][name] + 1e-5, name, found)


def test_sums_of_bools_and_numbers_are_rounded_too():
    text = "def program(x0):\n    v0 = (x0 > 0) + x0 / 3\n    return (v0,)\n"
    assert "gradient of x0" in numbers_by(text, "numbers((3, 7), 'float32', 0, 'small')")[2][0]


def test_a_product_that_leaves_its_type_on_the_way_in_another_order_is_nothing_to_go_by():
    text = "def program(x0):\n    v0 = x0.prod()\n    return (v0,)\n"
    for numbers, open_ in (("3e38, 3e38, 0.0", True), ("1e-30, 1e-30, 1e30", True), ("3e8, 3e8, 0.0", False)):
        found = numbers_by(text, f"torch.tensor([{numbers}])")
        assert bool(told(torch.tensor(torch.nan), "result 0", found)) is not open_


def test_a_logarithm_of_a_sum_is_as_near_as_what_it_is_taken_off():
    for made in ("x0.log_softmax(0)", "torch.logaddexp(x0[1], x0[2])"):
        text = f"def program(x0):\n    v0 = {made}\n    return (v0,)\n"
        found = numbers_by(text, "torch.tensor([3.0, -0.7, -0.68], dtype=t_float64)")
        value = found[0]["result 0"]
        assert not told(value + 4e-16, "result 0", found) and told(value + 4e-14, "result 0", found)


def test_what_is_computed_again_for_its_derivative_may_be_computed_once():
    """Eager computes it of what was written since: no derivative of what the program computed."""
    text = "def program(x0):\n    v0 = checkpoint(lambda: x0.exp2(), use_reentrant=False)\n    x0.neg_()\n    return (v0,)\n"
    program = parsed(text, (Given("x0", ("numbers((4, 4), 'float32', 0, 'small')",), "made"),), backward=True)
    theirs = checking.seen(program, program.function(), 0)
    for power, alike in ((1, True), (3, False)):

        def ours(x, power=power):
            made = x.exp2()
            x.neg_()
            made.register_hook(lambda g: g * power)
            return (made,)

        seen = checking.seen(program, ours, 0)
        assert (checking.differs(program, 0, seen, theirs) is None) is alike


def test_a_checkpoint_that_eager_cannot_compute_again_of_what_was_turned_is_held_to_none() -> None:
    """Eager pools the turned argument anew, which is too short by then, and says that; ours says what was written."""
    text = "def program(x0):\n    v0 = checkpoint(lambda: F.lp_pool1d(x0, 2, 2), use_reentrant=False)\n    x0.t_()\n    return (v0,)\n"
    made = ("numbers((8, 1), 'float32', 0, 'small').movedim(-1, 0)",)
    program = parsed(text, (Given("x0", made, "made"),), backward=True, backend="aot_eager")
    assert checking.check(program) is None
    theirs = checking.seen(program, program.function(), 0)
    assert theirs.backward_error and "too small" in theirs.backward_error[1]

    def fails_otherwise(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.nn.functional.lp_pool1d(x, 2, 2)
        made.register_hook(lambda g: g[0, 4])
        return (made,)

    seen = checking.seen(program, fails_otherwise, 0)
    assert seen.backward_error and checking.differs(program, 0, seen, theirs).kind == "backward error"


def test_what_a_program_is_given_is_not_rounded():
    """The largest number of all would become an infinity."""
    found = numbers_by(
        "def program(x0):\n    v0 = x0 * 1\n    return (v0,)\n", "numbers((40,), 'float64', 0, 'special')"
    )
    assert all(torch.equal(r["argument x0"].isinf(), found[1]["argument x0"].isinf()) for r in found[2])


def test_signs_of_zeros_in_gradients_do_not_count_where_a_view_of_an_argument_is_returned():
    for text, view in (
        ("v0 = x0[1:]", True), ("v0 = x0 * 1", False), ("v0 = x0[:0]", True), ("v0 = (x0 * 1).unbind()[1]", True),
        ("v0 = (x0 * 1).split(2)[0][None]", True), ("v1 = x0 * 1\nv0 = v1.split(2)[0]\nv1.add_(1)", False), ("v0 = (x0 * 1)[1:]", False), ("v0 = (x0 * 1).unbind()[1] * 2", False),
    ):  # fmt: skip
        program = TensorProgram(
            (Given("x0", ("numbers((4,), 'float32', 0, 'small')",), "leaf"),), (Line(("v0",), text),), ("v0",)
        )
        assert checking.seen(program, program.function(), 0).returns_view is view
    found = ({"a": -torch.zeros(2)}, {"a": -torch.zeros(2).double()}, [])
    assert told(torch.zeros(2), "a", found) and not told(torch.zeros(2), "a", found, signs=False)


@pytest.mark.parametrize(("scale", "alike"), [(1, True), (2, False)])
def test_a_history_that_is_gone_unless_somebody_looks_is_looked_at(scale, alike):
    """A view of what was written and then detached in place has a history in eager if it was asked for in between."""
    lines = ("v0 = x0 * 3", "v1 = v0[...]", "v0.add_(1)", "v0.detach_()", "v2 = v1.clone()")
    program = TensorProgram(
        (Given("x0", ("numbers((4,), 'float32', 0, 'small')",), "leaf"),),
        tuple(Line((line[:2],) if " = " in line else (), line) for line in lines),
        ("v2",),
        backward=True,
    )

    def ours(x):
        return (x * 3 * scale + (1 - scale) * (x * 3).detach() + 1,)

    theirs = checking.seen(program, program.function(), 0)
    assert theirs.facts["gradient"] == {"x0": None}
    found = checking.differs(program, 0, checking.seen(program, ours, 0), theirs)
    assert (found is None) is alike


@pytest.mark.parametrize("looks", [True, False])
def test_what_requires_a_gradient_for_whoever_looks_may_do_so(looks):
    """A view that is older than the write, of what became a leaf and was detached then."""
    text = (
        "def program(x0):\n    v0 = x0[...]\n    v0.add_(1)\n    x0.requires_grad_()\n    x0.detach_()\n"
        "    v1 = v0 * 2\n    return (v0, v1)\n"
    )
    program = parsed(text, (Given("x0", ("numbers((4,), 'float32', 0, 'small')",)),))
    theirs, ours = (checking.seen(program, program.function(), 0) for _ in range(2))
    assert theirs.facts["requires_grad"] == dict.fromkeys(("result 0", "result 1", "argument x0"), False)
    for fact in ("requires_grad", "grad_fn"):
        ours.facts[fact] = {"result 0": looks, "result 1": True, "argument x0": False}
    ours.facts["leaf"] = {"result 0": not looks, "result 1": False, "argument x0": True}
    assert (checking.differs(program, 0, ours, theirs) is None) is looks


def test_an_argument_of_which_a_view_is_turned_is_marked_as_eagers_is():
    text = "def program(x0):\n    x0.data.add_(1)\n    v0 = x0[None]\n    v0.squeeze_(0)\n    return (v0,)\n"
    program = parsed(text, (Given("x0", ("numbers((4,), 'float32', 0, 'small')",)),))
    ours, theirs = (checking.seen(program, program.function(), 0) for _ in range(2))
    assert checking.differs(program, 0, ours, theirs) is None and theirs.facts["changed"] == {"x0": True}
    ours.facts["changed"] = {"x0": False}
    assert checking.differs(program, 0, ours, theirs).kind == "changed"


def test_bounds_that_are_no_numbers_are_passed_over_before_2_13(monkeypatch):
    text = "v0 = x0.clamp(min=nan)"
    program = TensorProgram(
        (Given("x0", ("numbers((4,), 'float32', 0, 'small')",)),), (Line(("v0",), text),), ("v0",)
    )
    for before, alike in ((True, True), (False, False)):
        monkeypatch.setattr(checking, "PASSES_NAN_OVER", before)
        ours, theirs = (checking.seen(program, program.function(), 0) for _ in range(2))
        ours.values["result 0"] = torch.ones(4)
        assert (checking.differs(program, 0, ours, theirs) is None) is alike


def test_a_maximum_whose_places_are_written_is_no_part_of_a_gradient_that_reads_other_tangents():
    """What a missing tangent adds to a gradient is left out of the sum: zeros for it would read the places, which were written since."""
    text = (
        "def program(x1):\n    v0, v1 = x1.max(-1)\n    v2 = x1.diff()\n    v3 = torch.special.erfcx(v2)\n    v4 = v2[:-1]\n"
        "    v3.register_hook(lambda g: g * 2)\n    v1.clamp_min_(1)\n    v3.transpose_(0, -1)\n    return (v2, v4)\n"
    )
    given = (Given("x1", ("numbers((8, 6), 'float32', 1, 'normal').movedim(-1, 0)",), "made"),)
    assert checking.check(parsed(text, given, backend="aot_eager", dynamic=False, backward=True)) is None


@pytest.mark.parametrize("view", [True, False])
def test_parts_of_a_gradient_that_are_no_numbers_are_so_in_both_where_a_view_is_returned(view):
    """Of two complex numbers that are added the second is multiplied by one, which makes both of its parts no number."""
    program = TensorProgram(
        (Given("x0", ("numbers((4,), 'float32', 0, 'small') * (1 - 2j)",), "leaf"),),
        (Line(("v0",), "v0 = x0[1:]" if view else "v0 = x0 * 1"),),
        ("v0",),
        backward=True,
    )
    theirs, ours = (checking.seen(program, program.function(), 0) for _ in range(2))
    name = "gradient of x0"
    theirs.values[name][2] = torch.tensor([torch.nan, 1.0])
    ours.values[name][2] = torch.nan
    assert (checking.numbers_differ(program, 0, ours, theirs) is None) is view
    ours.values[name][1] += 1
    assert checking.numbers_differ(program, 0, ours, theirs) is not None


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        ("x1.data.exp_()", True),
        ("v3 = x1.data\n    v3.tanh_()", True),
        ("v3 = x1.data\n    v4 = v3 + 1\n    v3[0].add_(1)", True),
        ("v3 = x1.data\n    v3[0] = -128", True),
        ("v3 = x1.data\n    v4 = v3 + 1\n    v4.exp_()", False),
        ("v3 = x1.data\n    v30.exp_()", False),
        ("x1.data = v3\n    v3.exp_()", False),
    ],
)
def test_writes_through_data_are_known_by_name_too(lines: str, seen: bool) -> None:
    """A backward may keep other things than eager's, which such a write reaches or does not (`tensors` 9500021012)."""
    assert bool(checking.UNSEEN.search(f"def program(x1):\n    {lines}\n    return (x1,)\n")) is seen
