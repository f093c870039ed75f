"""What models and scripts have at hand: layers with state of their own, hooks, functions with a backward."""

PRELUDE = """
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
import torch.nn.utils.prune as prune
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

LOG = []


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        self.seen += x.shape[0]
        return x * (1 + self.calls % 2)


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean().to(self.mean.dtype), 0.1)
        return x - self.mean


class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x + self.mean


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.8))

    def forward(self, x, by=1.0):
        return x * torch.sigmoid(self.weight) * by


class Noted(nn.Module):
    def forward(self, x):
        LOG.append(("noted", tuple(x.shape), self.training, torch.is_grad_enabled()))
        self.last_shape = x.shape
        return x.exp().log1p()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 + 0 * x


def halved(g):
    return g * 0.5


def noted(g):
    LOG.append(("gradient", tuple(g.shape)))


def seen_forward(module, args, made):
    LOG.append(("forward", type(module).__name__, len(args), made.requires_grad))


def louder(module, args, made):
    return made * 1.5


def seen_before(module, args):
    LOG.append(("before", type(module).__name__, tuple(args[0].shape)))


def quieter(module, args):
    return (args[0] * 0.5, *args[1:])


def seen_backward(module, into, out):
    LOG.append(("backward", type(module).__name__, [g is None for g in into], [g is None for g in out]))


def seen_grad(p):
    LOG.append(("grad", tuple(p.shape), p.grad is None))


def stepped(p):
    with torch.no_grad():
        p.sub_(p.grad, alpha=0.01)


def first(model, *kinds):
    return next(m for m in model.modules() if isinstance(m, kinds))


handle = nn.Module().register_forward_hook(halved)


def tie(model):
    linears = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.shape == (8, 8)]
    linears[-1].weight = linears[0].weight


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


SCALES = [torch.tensor(1.0, dtype=torch.float64)]
AVERAGES = {}


class Squashed(nn.Module):
    def forward(self, w):
        return w.tanh()


class Halved(nn.Module):
    def forward(self, w):
        return w * 0.5

    def right_inverse(self, w):
        return w * 2


class Doubling:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.before = self.model.scale
        self.model.scale = self.before * 2

    def __exit__(self, *error):
        self.model.scale = self.before


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, g):
        return g * ctx.by, None


def halve(h, so_far=[0]):
    so_far[0] += 1
    return h * (0.5 if so_far[0] % 2 else 0.25)


def accumulated(c, data, times):
    for _ in range(times):
        (c(data(3)).pow(2).mean() / times).backward()


def unscaled(opt, by):
    grads = [p.grad for group in opt.param_groups for p in group["params"] if p.grad is not None]
    for grad in grads:
        grad.mul_(1 / by)
    return not all(bool(grad.isfinite().all()) for grad in grads)


@torch.no_grad()
def averaged(model):
    for name, p in model.named_parameters():
        if name in AVERAGES and AVERAGES[name].shape == p.shape:
            AVERAGES[name].lerp_(p.to(AVERAGES[name].dtype), 0.1)
        else:
            AVERAGES[name] = p.detach().clone()


def swapped(model):
    for name, p in model.named_parameters():
        if name in AVERAGES:
            p.data, AVERAGES[name] = AVERAGES[name], p.data


def reshaped(model, shape):
    for name in list(model._buffers):
        if name.startswith("r"):
            setattr(model, name, torch.full(shape, 0.5, dtype=model._buffers[name].dtype))


def pool_of_one():
    return ThreadPoolExecutor(1)
"""
