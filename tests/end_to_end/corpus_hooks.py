"""Hooks that a compiled function puts on tensors: on what comes in, on what it returns, and on what lies between."""

from __future__ import annotations

import torch
from torch import nn

from tests.end_to_end.conformance import WITH_KERNELS, attempt, scenario, whole

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


def leaf(x=X):
    return x.clone().requires_grad_()


@whole
def on_a_parameter(c):
    n, log = nn.Linear(3, 2), []
    nn.init.ones_(n.weight)
    nn.init.zeros_(n.bias)

    @c
    def f(x):
        handle = n.weight.register_hook(lambda g: log.append(g.clone()) or g * 3)
        return n(x).sin(), handle

    for x in (X, Y):
        y, handle = f(x)
        y.sum().backward()
        yield y, n.weight.grad, n.bias.grad, log, len(n.weight._backward_hooks)
        handle.remove()
        yield len(n.weight._backward_hooks)


@whole
def on_an_input_that_has_a_history(c):
    log = []

    @c
    def f(x):
        x.register_hook(lambda g: log.append("first") or g + 1)
        y = x * 2
        x.register_hook(lambda g: log.append("second") or g * 10)
        return y.sum() + x.sin().sum()

    for _ in range(2):
        w = leaf()
        f(w * 3).backward()
        yield w.grad, log


@whole
def many_hooks_in_order(c):
    log = []

    @c
    def f(x, names):
        for name in names:
            x.register_hook(lambda g, name=name: log.append(name) or g * 2)
        return (x * x).sum()

    for names in (("a", "b", "c"), ("d",), ()):
        w = leaf()
        f(w, names).backward()
        yield w.grad, log


@whole
def where_no_gradient_comes(c):
    log = []

    @c
    def f(x, w, v):
        w.register_hook(lambda g: log.append("w") or g + 1)
        v.register_hook(lambda g: log.append("v") or g + 1)
        v.register_post_accumulate_grad_hook(lambda p: log.append("after v"))
        return (x * w.detach()).sum() + x.sin().sum(), (x * v).sum()

    for both in (False, True, False):
        x, w, v = leaf(), leaf(X[0]), leaf(X[0])
        one, other = f(x, w, v)
        (one + other if both else one).backward()
        yield one, other, x.grad, w.grad, v.grad, log


@whole
def put_on_and_taken_off(c):
    log = []

    @c
    def f(x):
        one = x.register_hook(lambda g: log.append("one") or g * 2)
        two = x.register_hook(lambda g: log.append("two") or g * 3)
        one.remove()
        one.remove()
        with x.register_hook(lambda g: log.append("never")):
            y = x * x
        return y.sum(), two

    w = leaf()
    y, two = f(w)
    y.backward()
    yield w.grad, log, len(w._backward_hooks)
    two.remove()
    y, two = f(w)
    y.backward()
    yield w.grad, log, len(w._backward_hooks)


@whole
def after_the_gradient_is_there(c):
    log = []

    @c
    def f(w, x, lr):
        def step(p):
            log.append(p.grad.sum().item())
            with torch.no_grad():
                p.sub_(p.grad, alpha=lr)
            p.grad = None

        handle = w.register_post_accumulate_grad_hook(step)
        return (w * x).sum(), handle

    w = leaf(X[0])
    for lr in (0.5, 0.25):
        y, handle = f(w, X, lr)
        y.backward()
        handle.remove()
        yield y, w, w.grad, log


@whole
def on_what_is_returned(c):
    log = []

    @c
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: log.append(g.clone()) or g * 10)
        return y, (x * 2).sum()

    for _ in range(2):
        w = leaf()
        y, other = f(w)
        (y.sum() * 3 + other).backward()
        yield y, w.grad, log


@whole
def on_a_view_that_is_returned(c):
    log = []

    @c
    def f(x):
        y = x.view(-1)
        y.register_hook(lambda g: log.append(g.clone()) or g * 10)
        z = (x * 2)[0]
        z.register_hook(lambda g: g + 1)
        return y, z

    for _ in range(2):
        w = leaf()
        y, z = f(w)
        (y.sum() * 3 + (z * z).sum()).backward()
        yield y, z, w.grad, log


@whole
def handles_kept(c):
    class Watch:
        def __init__(self):
            self.handles, self.seen = [], []

        def __call__(self, x):
            self.handles.append(x.register_hook(self.see))
            self.last = self.handles[-1]
            return x * 2

        def see(self, g):
            self.seen.append(g.clone())

        def clear(self):
            for handle in self.handles:
                handle.remove()
            self.handles.clear()

    watch = Watch()
    f = c(lambda x: watch(x).sum())
    for clear in (False, True, False):
        w = leaf()
        y = f(w)
        if clear:
            watch.clear()
        y.backward()
        yield w.grad, watch.seen, len(watch.handles), len(w._backward_hooks)


@whole
def a_hook_that_takes_itself_off(c):
    log = []

    @c
    def f(x):
        def once(g):
            log.append("once")
            handle.remove()
            return g * 2

        handle = x.register_hook(once)
        return (x * 3).sum()

    w = leaf()
    y = f(w)
    y.backward(retain_graph=True)
    y.backward()
    yield w.grad, log


@whole
def hooks_over_what_the_graph_makes(c):
    @c
    def f(x, w):
        scale = (x * 2).sum().detach()
        found = []
        w.register_hook(lambda g: found.append(g) or g * scale)
        return (x * w).sum(), found

    for x in (X, Y):
        w = leaf(X[0])
        y, found = f(x, w)
        y.backward()
        yield y, w.grad, found


@whole
def leaves_written_without_gradients(c):
    @c
    def f(w, x):
        w.register_hook(lambda g: g * 2)
        with torch.no_grad():
            w.mul_(0.5)
        return (w * x).sum()

    w = leaf(X[0])
    f(w, X).backward()
    yield w, w.grad


@scenario
def in_the_middle(c):
    log = []

    @c
    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append("y") or g * 10)
        z = y.sin()
        handle = z.register_hook(lambda g: log.append("z") or g + 1)
        if x.dim() == 1:
            handle.remove()
        log.append("made")
        return z.sum() + y.sum()

    for x in (X, X[0], X, X[0]):
        w = leaf(x)
        out = f(w)
        out.backward()
        yield out, w.grad, log


@scenario
def in_the_middle_of_modules(c):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            for p in self.parameters():
                nn.init.constant_(p, 0.25)
            self.gradient = None

        def keep(self, g):
            self.gradient = g

        def forward(self, x):
            h = self.a(x).relu()
            if h.requires_grad:
                h.register_hook(self.keep)
            return self.b(h)

    n = Block()
    f = c(n)
    for x in (X, Y):
        f(x).sum().backward()
        yield n.a.weight.grad, n.gradient
    with torch.no_grad():
        yield f(X)


@scenario
def written_after_the_hook(c):
    log = []

    @c
    def f(x):
        x.register_hook(lambda g: log.append(g.clone()) or g * 10)
        x.mul_(3)
        return x.sin().sum()

    @c
    def g(x):
        x.mul_(3)
        x.register_hook(lambda g: log.append(g.clone()) or g * 10)
        return x.sin().sum()

    for fn in (f, g, f, g):
        w = leaf()
        fn(w * 2).backward()
        yield w.grad, log


@scenario
def on_the_whole_of_a_view_that_is_written(c):
    log = []

    @c
    def f(part, x):
        part.mul_(3)
        x.register_hook(lambda g: log.append(g.clone()) or g * 10)
        return part.sin().sum()

    @c
    def g(part, x):
        part.mul_(3)
        y = part.sin().sum()
        (gradient,) = torch.autograd.grad(y, x, retain_graph=True)
        return y, gradient

    @c
    def h(x):
        part = x[...]
        part[:1] *= 3
        x.register_hook(lambda g: log.append(g.clone()) or g * 10)
        return part.sin().sum()

    for apart in (True, False, True):  # what is compiled for a view of another tensor is not for one of this
        w = leaf()
        x = w * 2
        part = (w * 2 if apart else x)[0]
        f(part, x).backward()
        yield w.grad, log
        x = leaf(Y) * 2
        yield attempt(g, x[0], x), h(leaf() * 2)
    w = leaf()
    h(w * 2).backward()
    yield w.grad, log


@scenario
def hooks_that_are_refused(c):
    f = c(lambda x: (x.register_hook(lambda g: g), x * 2)[1])
    g = c(lambda x: (x.register_post_accumulate_grad_hook(print), x * 2)[1])
    h = c(lambda x: ((x * 2).register_post_accumulate_grad_hook(print), x * 2)[1])
    for fn in (f, g, h):
        yield attempt(fn, X), attempt(fn, leaf() * 2)

    @c
    def caught(x):
        try:
            x.register_hook(lambda g: g)
        except RuntimeError as error:
            return x + 1, str(error)

    yield caught(X), caught(X)
    wrong = c(lambda x: x.register_hook())
    yield type(attempt(wrong, leaf()))


@scenario
def around_a_break(c):
    log = []

    @c
    def f(x):
        handle = x.register_hook(lambda g: log.append("a") or g * 2)
        print("half way")
        x.register_hook(lambda g: log.append("b") or g * 3)
        y = (x * float(x.detach().sum())).sum()
        if x.dim() == 1:
            handle.remove()
        return y

    for x in (X, X[0]):
        w = leaf(x)
        f(w).backward()
        yield w.grad, log, len(w._backward_hooks)


@scenario
def errors_after_a_hook(c):
    log = []

    @c
    def f(x, y):
        x.register_hook(lambda g: log.append("hook") or g * 2)
        return (x @ y).sum()

    w = leaf()
    yield f(w, X.T.clone())
    yield attempt(f, w, X), len(w._backward_hooks)
    f(w, X.T.clone()).backward()
    yield w.grad, log


@scenario
def the_inside_of_a_handle(c):
    @c
    def f(x):
        a, b = x.register_hook(lambda g: g), x.register_hook(lambda g: g * 2)
        kept = {a.id: "a", b.id: "b"}
        return x * 2, kept[b.id], a.id == b.id, type(a), isinstance(b, torch.utils.hooks.RemovableHandle)

    @c
    def g(x):
        a = x.register_hook(lambda g: g)
        return a.id in a.hooks_dict_ref(), x + 1

    yield f(leaf())
    yield f(leaf())
    yield g(leaf())


@whole
def computed_in_the_middle(c):
    @c
    def f(x, k):
        y, m = x * 2, x.detach().cos()
        y.register_hook(lambda g: g * 5 + k * m)
        z = y.sin()
        z.register_hook(lambda g: g.clamp(-0.5, 0.5))
        with torch.no_grad():
            n = z.exp()
        return z.sum() + y.mean(), n

    for k in (3, 2, 4):
        w = leaf()
        out, n = f(w, k)
        out.backward()
        yield out, n, w.grad


@whole
def computed_in_the_middle_of_what_no_grad_surrounds(c):
    @c
    def f(x):
        y = x * 2
        with torch.no_grad():
            y.register_hook(lambda g: g * 5)
            seen = y.requires_grad
        return y.sin(), seen

    for _ in range(2):
        w = leaf()
        out, seen = f(w)
        out.sum().backward()
        yield out, w.grad, seen


@whole
def gradients_reversed_in_a_module(c):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            for p in self.parameters():
                nn.init.constant_(p, 0.25)

        def forward(self, x, weight=0.5):
            h = self.a(x).relu()
            if h.requires_grad:
                h.register_hook(lambda g, weight=weight: -weight * torch.nan_to_num(g))
            return self.b(h)

    n = Block()
    f = c(n)
    for x in (X, Y):
        out = f(x)
        out.sum().backward()
        yield out, n.a.weight.grad, n.b.weight.grad
    with torch.no_grad():
        yield f(X)


@whole
def a_hook_that_does_nothing(c):
    @c
    def f(x):
        y = x * 2
        y.register_hook(lambda g: None)
        return (y * y).sum()

    w = leaf()
    f(w).backward()
    yield w.grad


@scenario
def variables_that_change_before_the_backward(c):
    class Holder:
        scale = 2.0

    holder = Holder()

    @c
    def after(x):
        y, k = x * 2, 3.0
        y.register_hook(lambda g: g * k)
        z = y.sin().sum()
        k = 10.0
        return z

    @c
    def told(x):
        y, k = x * 2, 3.0
        y.register_hook(lambda g: g * k)

        def tell(value):
            nonlocal k
            k = value

        return y.sin().sum(), tell

    @c
    def broken(x):
        y, k = x * 2, 3.0
        y.register_hook(lambda g: g * k)
        z = y.sin().sum()
        print("half way")
        k = 7.0
        return z

    @c
    def of_an_object(x):
        y = x * 2
        y.register_hook(lambda g: g * holder.scale)
        return y.sin().sum()

    @c
    def of_an_input(x, m):
        y = x * 2
        y.register_hook(lambda g: g * m)
        return y.sin().sum()

    @c
    def of_a_global(x):
        y = x * 2
        y.register_hook(lambda g: g * SCALE)
        return y.sin().sum()

    global SCALE
    for scale in (2.0, 3.0):
        w = leaf()
        after(w).backward()
        yield w.grad
        w = leaf()
        z, tell = told(w)
        tell(scale)
        z.backward()
        yield w.grad
        w = leaf()
        broken(w).backward()
        yield w.grad
        w, SCALE, m = leaf(), 1.0, torch.ones(3)
        z = of_an_object(w) + of_an_input(w, m) + of_a_global(w)
        holder.scale = SCALE = scale
        z.backward()
        yield w.grad


SCALE = 1.0


@scenario
def hooks_in_the_middle_that_do_more(c):
    @c
    def used_before(x):
        y = x * 2
        z = y.cos().sum()
        y.register_hook(lambda g: g * 3)
        return z + y.sin().sum()

    @c
    def twice(x):
        y = x * 2
        y.register_hook(lambda g: g + 1)
        y.register_hook(lambda g: g * 3)
        return y.sin().sum()

    @c
    def removed(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 3)
        z = y.sin().sum()
        handle.remove()
        return z

    @c
    def handed_out(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 3)
        return y.sin().sum(), handle

    @c
    def in_place(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        z = (y + 1).sum()
        y.mul_(2)
        return z + y.sum()

    @c
    def gradient_written(x):
        y = x * 2
        y.register_hook(lambda g: (g.mul_(2), None)[1])
        return y.sin().sum()

    @c
    def with_gradients_of_its_own(x):
        y = x * 2
        z = y.sin()
        z.register_hook(lambda g: g * y)
        return (z * z).sum()

    kept = []

    @c
    def kept_by_others(x):
        y = x * 2
        y.register_hook(lambda g: g + 1)
        kept.append(y)
        return y.sin().sum()

    functions = [used_before, twice, removed, in_place, gradient_written, with_gradients_of_its_own]
    for fn in functions * 2:
        w = leaf()
        out = attempt(fn, w)
        if isinstance(out, torch.Tensor):
            out.backward()
        yield type(out), w.grad
    for _ in range(2):
        w = leaf()
        out = kept_by_others(w)
        kept.pop().register_hook(lambda g: g * 3)
        out.backward()
        yield w.grad
    for remove in (False, True):
        w = leaf()
        out, handle = handed_out(w)
        if remove:
            handle.remove()
        out.backward()
        yield w.grad


@scenario
def a_gradient_of_another_shape(c):
    @c
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g.sum())
        return (y * y).sum()

    for _ in range(2):
        w = leaf()
        out = f(w)
        yield type(attempt(out.backward))


@scenario
def after_the_tensor_was_used(c):
    log = []

    @c
    def computes(x):
        y = x.sin()
        z = y * 3
        y.register_hook(lambda g: g * 2)
        return z

    @c
    def writes_to_objects(x):
        y = x.sin()
        z = y * 3 + x
        y.register_hook(lambda g: log.append(g.clone()) or g * 2)
        return z * y

    @c
    def in_a_call(x):
        y = x.sin()
        z = halved(y) + y.detach()
        y.register_hook(lambda g: log.append(g.clone()) or g * 2)
        return z * y

    def halved(y):
        w = y.cos()
        return w / 2

    @c
    def first_use_counts_for_nothing(x):
        y = x.sin()
        z = y.detach() * 3
        y.register_hook(lambda g: g * 2)
        return z * y

    @c
    def written_argument(x):
        x.abs_()
        z = x.sin()
        x.register_hook(lambda g: g * 2)
        return z * x

    for fn in (computes, writes_to_objects, in_a_call, first_use_counts_for_nothing, written_argument) * 2:
        w = leaf(Y)
        out = fn(w * 1)
        out.sum().backward()
        yield out, w.grad, log


@scenario
def gradients_of_what_was_used(c):
    @c
    def kept(x):
        y = x.sin()
        z = y * 3
        y.retain_grad()
        return y, z * y

    @c
    def derived(x):
        y = x.sin()
        z = (y * 3).sum()
        (g,) = torch.autograd.grad(z, y)
        return g * 2

    @c
    def accumulated(x):
        y = x.sin().detach().requires_grad_()
        z = (y * 3).sum()
        z.backward(inputs=[y])
        return y.grad * 2

    for _ in range(2):
        y, z = kept(leaf(Y))
        z.sum().backward()
        yield y.grad, derived(leaf(Y)), accumulated(leaf(Y))


@scenario
def detached_after_the_hook(c):
    @c
    def f(x):
        x.register_hook(lambda g: g * 2)
        x.detach_()
        return x * 2

    for _ in range(2):
        w = leaf(Y)
        yield f(w).requires_grad, w.requires_grad, f(leaf(Y) * 2).requires_grad


@scenario
def a_result_that_has_no_part_in_the_loss_at_a_break(c):
    """Its hook does not run, whatever the other results of the graph before it are used for."""
    log = []

    @c
    def f(x):
        y = x.erf()
        z = torch.nn.functional.hardtanh(y)
        z.register_hook(lambda g: log.append(g) or g * 2)
        z.sigmoid_()
        return y * 3, z

    for used in ((0,), (1,), (0, 1)):
        x = leaf(Y)
        results = f(x)
        sum(results[i].sum() for i in used).backward()
        yield x.grad, log


@scenario
def what_is_written_by_a_graph_that_follows_its_hook(c):
    """Nor does one on what a later graph is given and has no gradient for."""
    log = []

    @c
    def f(x, y):
        z = x * 3
        z.mul_(2)
        z.register_hook(lambda g: log.append(g) or g * 2)
        pooled = torch.nn.functional.max_pool1d(y, 2)
        z.copy_((pooled * pooled).sum())
        return z, pooled.sin()

    for used in ((1,), (0, 1)):
        x, y = leaf(Y), leaf()
        results = f(x, y)
        sum(results[i].sum() for i in used).backward()
        yield x.grad, y.grad, log


@scenario
def what_is_written_in_a_list_after_its_hook(c):
    """Writes to the tensors of a list count as writes."""

    @c
    def f(x):
        y = -x
        z = y * 3
        torch._foreach_mul_([y], 2)
        return y, z

    @c
    def hooked(x):
        y = -x[..., 1:]
        y.register_hook(lambda g: g * 2)
        torch._foreach_add_([y, y], 1)
        return torch.vstack([y, y])

    for call in (f, hooked):
        x = leaf(Y)
        made = call(x)
        sum(y.sum() for y in made).backward()
        yield made, x.grad


WITH_KERNELS |= {
    on_the_whole_of_a_view_that_is_written.__name__,
    a_result_that_has_no_part_in_the_loss_at_a_break.__name__,
    what_is_written_by_a_graph_that_follows_its_hook.__name__,
    what_is_written_in_a_list_after_its_hook.__name__,
}


@scenario
def a_hook_that_writes_to_its_gradient_through_a_view(c):
    def views(g):
        yield g.view(-1)[:1]
        yield g[1]
        yield g.t()[2]
        yield g.unbind()[0]

    for number in range(4):

        @c
        def f(x, number=number):
            y = x * 2

            def hook(gradient):
                list(views(gradient))[number].mul_(5)

            y.register_hook(hook)
            return (y * y).sum()

        x = leaf()
        f(x).backward()
        yield x.grad
