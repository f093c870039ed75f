"""What models are made of, and what happens to them between calls.

Rows are text in which ``<a|b>`` stands for one of its choices and ``$`` for the place of a layer. The layers of a kind keep the
shape of what they are given, so that any of them can be left out: rows of 8 numbers, 6 words of 8 numbers, pictures of 8 channels.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

#: the sizes of one row of what a model is called on
INPUTS = {"rows": (8,), "words": (6, 8), "picture": (8, 6, 6)}
#: layers that any kind takes: how they are made, how they are called
ANY = (
    ("self.l$ = nn.<ReLU()|GELU()|SiLU()|Tanh()|Softplus()|LeakyReLU(0.2)|ELU()|Hardswish()|PReLU()|Identity()|Mish()|Sigmoid()|CELU()|Softsign()|LogSigmoid()|Hardtanh()>", "h = self.l$(h)"),
    ("self.l$ = nn.<Dropout(0.3)|Dropout(0.5, inplace=True)|AlphaDropout(0.2)|RReLU()|Dropout(0.0)|Dropout(1.0)>", "h = self.l$(h)"),
    ("self.l$ = Counted()", "h = self.l$(h)"),
    ("self.l$ = Moving()", "h = self.l$(h)"),
    ("self.l$ = Replaced()", "h = self.l$(h)"),
    ("self.l$ = Gate()", "h = self.l$(h<|, 2.0|, by=self.scale>)"),
    ("self.l$ = Noted()", "h = self.l$(h)"),
    ("self.w$ = nn.Parameter(torch.full((<|1,|8,>), 0.7))", "h = h * self.w$<.sum()|.mean()|.exp().sum()|.norm()>"),
    ("self.w$ = nn.Parameter(torch.tensor(0.3)<|, requires_grad=False>)", "h = h + self.w$"),
    ("self.register_buffer('b$', torch.ones(())<|, persistent=False>)", "self.b$<.add_(1)| = self.b$ + 1|.copy_(h.detach().mean())|.mul_(0.5)>; h = h * self.b$"),
    ("self.w$ = nn.ParameterList([nn.Parameter(torch.tensor(0.1 * k)) for k in range(3)])", "h = h + sum(<self.w$|[w * w for w in self.w$]|(w for w in self.w$ if w.requires_grad)>)"),
    ("self.w$ = nn.ParameterDict({'a': nn.Parameter(torch.tensor(2.0)), 'b': nn.Parameter(torch.tensor(0.5))})", "h = <h * self.w$['a']|h * self.w$['a'] + self.w$['b']|sum(h * w for w in self.w$.values())>"),
    ("pass", "h = Doubled.apply(h)"),
    ("pass", "h = h<.detach()|.clone()|.contiguous()| * 1| + h.detach()>"),
    ("pass", "h.register_hook(<halved|noted|lambda g: g.clamp(-1, 1)>)<| if h.requires_grad else None>"),
    ("pass", "h = checkpoint(<lambda t: t.sin() * t|lambda t: self.last(t)|F.softplus>, h, use_reentrant=False)"),
    ("pass", "h = h * (<2 if self.training else 1|self.scale|1 + self.calls % 2|len(LOG) % 3 + 1>)"),
    ("pass", "if torch.rand(()) < 0.5: h = h * 2"),
    ("pass", "with torch.no_grad(): self.peak = <h.abs().max()|torch.maximum(self.peak, h.abs().max())>"),
    ("pass", "with torch.<no_grad()|enable_grad()|set_grad_enabled(self.training)|autocast('cpu', enabled=False)>: h = h * 1.5"),
    ("pass", "self.calls += 1"),
    ("pass", "self.kept = h<|.detach()|.detach().clone()>"),
    ("pass", "h = h + self.kept<.mean()|.sum().detach()>"),
    ("pass", "LOG.append(<h.shape[0]|self.training|self.calls|h.requires_grad>)"),
    ("pass", "h = F.dropout(h, <0.2|0.5>, self.training<|, inplace=False>)"),
    ("pass", "h = F.normalize(h, dim=<1|-1>)"),
    ("pass", "h = h + <torch.rand_like(h)|torch.randn(h.shape, dtype=h.dtype)|torch.empty_like(h).uniform_()> * 0.1"),
    ("self.l$ = nn.ModuleDict({'gate': Gate(), 'tanh': nn.Tanh()})", "h = self.l$['gate' if self.training else 'tanh'](h)"),
    ("self.l$ = nn.ModuleList([Gate() for _ in range(2)])", "for layer in <self.l$|reversed(self.l$)|self.l$[1:]>: h = layer(h)"),
    ("self.l$ = nn.Sequential(Gate(), nn.Tanh(), Counted())", "h = <self.l$(h)|self.l$[0](h)|self.l$[:2](h)>"),
)  # fmt: skip
OF_LAST = (  # the last dim has 8 numbers
    ("self.l$ = nn.Linear(8, 8<|, bias=False>)", "h = self.l$(h)"),
    ("self.l$ = nn.Linear(8, 8)", "h = F.linear(h, self.l$.weight<|.t()|, self.l$.bias|.detach()|* 0.5>)"),
    ("self.l$ = nn.<LayerNorm(8)|RMSNorm(8, eps=1e-5)|LayerNorm(8, elementwise_affine=False)|LayerNorm((8,), eps=1e-2)>", "h = self.l$(h)"),
    ("self.l$ = nn.Bilinear(8, 8, 8)", "h = self.l$(h, h<|.detach()|.tanh()>)"),
    ("self.l$ = nn.Sequential(nn.Linear(8, 16), nn.<ReLU()|GELU()|Dropout(0.2)>, nn.Linear(16, 8))", "h = h + self.l$(h)"),
    ("self.l$ = nn.Linear(8, 16)", "a, b = self.l$(h).chunk(2, -1); h = a * b<|.sigmoid()|.detach()>"),
    ("self.l$ = nn.<GLU()|Softmax(-1)|Softmin(-1)|LogSoftmax(-1)>", "h = self.l$(<h|torch.cat([h, h], -1)>)[..., :<8|4>]; h = F.pad(h, (0, 8 - h.shape[-1]))"),
    ("self.l$ = nn.Embedding(5, 8<|, padding_idx=1|, max_norm=1.0|, scale_grad_by_freq=True>)", "h = h + self.l$((h.detach()[..., 0].abs() * 10).long() % 5)"),
)  # fmt: skip
LAYERS = {
    "rows": (
        ("self.l$ = nn.BatchNorm1d(8<|, momentum=None|, affine=False|, track_running_stats=False|, momentum=0.5|, momentum=0.0>)", "h = self.l$(h)"),
        ("self.l$ = nn.<GRUCell(8, 8)|RNNCell(8, 8)>", "h = self.l$(h<|, h.detach()|, h.tanh()>)"),
        ("self.l$ = nn.LSTMCell(8, 8)", "h, c = self.l$(h); h = h<| + c>"),
        ("self.l$ = nn.EmbeddingBag(5, 8, mode='<sum|mean|max>')", "h = h + self.l$((h.detach() * 10).long() % 5)"),
        ("self.l$ = nn.GroupNorm(<2|8>, 8)", "h = self.l$(h)"),
        *OF_LAST,
    ),
    "words": (
        ("self.l$ = nn.BatchNorm1d(6<|, momentum=None|, affine=False>)", "h = self.l$(h)"),
        ("self.l$ = nn.<LSTM|GRU|RNN>(8, <8|4, bidirectional=True|8, num_layers=2, dropout=0.1|8, batch_first=True>)", "h, c = self.l$(h)"),
        ("self.l$ = nn.MultiheadAttention(8, 2, <batch_first=True|dropout=0.1|bias=False|add_zero_attn=True>)", "h, w = self.l$(h, h, h<|, need_weights=False>)\n        h = h if w is None else h + w[0, 0, 0]"),
        ("self.l$ = nn.TransformerEncoderLayer(8, 2, 16, <dropout=0.0|0.1|0.1, norm_first=True>, batch_first=True)", "h = self.l$(h)"),
        ("self.l$ = nn.Conv1d(6, 6, <3, padding=1|1|3, padding='same'|5, padding=2, groups=3|3, padding=1, padding_mode='circular'>)", "h = self.l$(h)"),
        ("self.l$ = nn.<InstanceNorm1d(6, affine=True)|InstanceNorm1d(6, track_running_stats=True)|Dropout1d(0.3)>", "h = self.l$(h)"),
        ("pass", "h = F.scaled_dot_product_attention(h, h, h<|, is_causal=True>)"),
        *OF_LAST,
    ),
    "picture": (
        ("self.l$ = nn.Conv2d(8, 8, <3, padding=1|1|3, padding=1, groups=8|3, padding=2, dilation=2|3, padding=1, bias=False|3, padding=1, padding_mode='reflect'>)", "h = self.l$(h)"),
        ("self.l$ = nn.BatchNorm2d(8<|, momentum=None|, affine=False|, track_running_stats=False|, eps=1e-2>)", "h = self.l$(h)"),
        ("self.l$ = nn.Conv2d(8, 8, 3, padding=1); self.n$ = nn.BatchNorm2d(8)", "h = F.relu(self.n$(self.l$(h)))<| + h>"),
        ("self.l$ = nn.<GroupNorm(2, 8)|InstanceNorm2d(8)|InstanceNorm2d(8, affine=True, track_running_stats=True)|GroupNorm(8, 8, affine=False)|LayerNorm((8, 6, 6))>", "h = self.l$(h)"),
        ("self.l$ = nn.<MaxPool2d|AvgPool2d>(3, stride=1, padding=1)", "h = self.l$(h)"),
        ("self.l$ = nn.ConvTranspose2d(8, 8, 3, padding=1<|, bias=False>)", "h = self.l$(h)"),
        ("self.l$ = nn.Upsample(size=(6, 6), mode='<nearest|bilinear>')", "h = self.l$(F.<avg|max>_pool2d(h, 2))"),
        ("self.l$ = nn.<Dropout2d(0.3)|FeatureAlphaDropout(0.3)|ChannelShuffle(2)|LocalResponseNorm(2)>", "h = self.l$(h)"),
        ("self.l$ = nn.Linear(8, 8)", "h = h + self.l$(h.mean((2, 3)))[:, :, None, None]"),
        ("pass", "h = h.to(memory_format=torch.<channels_last|contiguous_format>)"),
        ("self.l$ = nn.AdaptiveAvgPool2d(<1|(3, 3)>)", "h = h * F.interpolate(self.l$(h), size=(6, 6)).sigmoid()"),
    ),
}  # fmt: skip
#: the layer that each model of a kind has, if only that its script finds one
FIRST = {
    "rows": ("self.l$ = nn.Linear(8, 8)", "h = self.l$(h)"),
    "words": ("self.l$ = nn.Linear(8, 8)", "h = self.l$(h)"),
    "picture": ("self.l$ = nn.Conv2d(8, 8, 3, padding=1)", "h = self.l$(h)"),
}
#: what is done to the model before it is compiled
BEFORE = (
    "tie(model)", "first(model, nn.Linear).requires_grad_(False)", "for p in list(model.parameters())[::2]: p.requires_grad_(False)",
    "<parametrizations.weight_norm|parametrizations.spectral_norm|nn.utils.weight_norm>(first(model, nn.Linear, nn.Conv2d))", "model.eval()", "model.requires_grad_(False)",
    "model.register_forward_hook(<louder|seen_forward>)", "model.register_full_backward_hook(seen_backward)", "first(model, nn.Linear, Gate).register_forward_pre_hook(<seen_before|quieter>)", "model = model.<float()|to(memory_format=torch.channels_last)>",
    "prune.random_unstructured(first(model, nn.Linear, nn.Conv2d), 'weight', 0.3)",
    "for p in model.parameters(): p.register_hook(<halved|noted>)", "for p in model.parameters(): p.register_post_accumulate_grad_hook(<seen_grad|stepped>)",
)  # fmt: skip
COMPILED = (
    "c = compiled(model)", "c = compiled(model)", "c = compiled(model)", "c = compiled(model.forward)", "c = compiled(lambda *args: model(*args))",
    "model.last = compiled(model.last); c = model", "c = compiled(model, dynamic=<True|False>)",
)  # fmt: skip
OPTIMIZERS = (
    "SGD(model.parameters(), lr=0.1<|, momentum=0.9|, momentum=0.9, nesterov=True|, weight_decay=0.1|, momentum=0.5, dampening=0.2>)",
    "Adam(model.parameters(), lr=0.01, eps=1e-2<|, amsgrad=True|, weight_decay=0.1|, maximize=True|, foreach=False>)", "AdamW(model.parameters(), lr=<0.01|torch.tensor(0.01, dtype=torch.float64)>, eps=1e-2)",
    "RMSprop(model.parameters(), lr=0.01, eps=1e-2<|, momentum=0.5|, centered=True>)", "Adagrad(model.parameters(), lr=0.1, eps=1e-2<|, lr_decay=0.1>)", "Adadelta(model.parameters(), eps=1e-2)",
    "RAdam(model.parameters(), lr=0.01, eps=1e-2)", "Adamax(model.parameters(), lr=0.01, eps=1e-2)", "SGD([{'params': list(model.parameters())[::2]}, {'params': list(model.parameters())[1::2], 'lr': 0.5}], lr=0.1)",
)  # fmt: skip
STEPPED = ("step = opt.step", "step = compiled(opt.step)", "step = compiled(lambda: opt.step())")
#: what happens, one after the other
ACTIONS = (
    *["see(c(data(<3|3|4|1|2>)))"] * 4,
    *["loss = c(data(<3|3|4|2>)).pow(2).mean(); loss.backward(); see(loss)"] * 4,
    *["c(data(3)).<pow(2).mean|sum|abs().mean>().backward(); step(); opt.zero_grad(<|set_to_none=False>)"] * 4,
    "with torch.no_grad(): see(c(data(<3|4>)))", "with torch.inference_mode(): see(c(data(3)))", "with torch.autocast('cpu', dtype=torch.bfloat16): see(c(data(3)))",
    "model.train()", "model.eval()", "model.train(not model.training)", "step()", "opt.zero_grad(<|set_to_none=False>)",
    "y = c(data(3)); y.sum().backward(retain_graph=True); y.mean().backward()", "y = c(data(3)); z = c(data(<3|4>)); (y.sum() * z.sum()).backward()", "y = c(data(3)); model.<eval()|train()>; y.sum().backward()",
    "see(torch.autograd.grad(c(data(3)).sum(), trained(model), allow_unused=True))", "x = data(3).requires_grad_(); c(x).sum().backward(); see(x.grad)", "x = data(3).requires_grad_(); see(torch.autograd.grad(c(x).pow(2).sum(), x))",
    "for p in list(model.parameters())<[:1]|[::2]|>: p.requires_grad_(<False|True>)", "nn.utils.clip_grad_<norm_(model.parameters(), 0.5)|value_(model.parameters(), 0.1)>", "state = copy.deepcopy(model.state_dict())",
    "see(model.load_state_dict(state<|, assign=True|, strict=False>))", "with torch.no_grad(): [p.<mul_(0.9)|add_(0.01)|copy_(p.flip(0))> for p in model.parameters()]", "for p in model.parameters(): p.data = p.data<.clone()| * 0.9|.flip(-1) if p.dim() else p.data>",
    "for p in model.parameters(): p.grad = <None|torch.ones_like(p)>", "name, p = next(model.named_parameters()); p.data.<fill_(0.5)|neg_()>", "first(model, nn.Linear, nn.Conv2d).weight = nn.Parameter(first(model, nn.Linear, nn.Conv2d).weight.detach() * 0.5)",
    "first(model, nn.Linear).bias = None", "model.scale = <2.0|0.5|3>", "model.calls = 0", "model.kept = torch.zeros(())", "handle = model.register_forward_hook(<louder|seen_forward>)", "handle.remove()",
    "handle = first(model, nn.Linear, nn.Conv2d, Gate).register_full_backward_hook(seen_backward)", "handle = model.register_forward_pre_hook(<seen_before|quieter>)", "other = compiled(copy.deepcopy(model)); see(other(data(3)))", "model.last = nn.<Tanh()|Sigmoid()|Identity()>",
    "model.last = Gate()", "model.double()", "model.float()", "see(functional_call(model, {k: v * 1.5 for k, v in model.named_parameters()}, (data(3),)))", "see(torch.func.grad(lambda p: functional_call(model, p, (data(3),)).sum())(dict(model.named_parameters())))",
    "opt.param_groups[0]['lr'] = 0.05", "opt.load_state_dict(copy.deepcopy(opt.state_dict()))", "torch.optim.lr_scheduler.<StepLR(opt, 1)|ExponentialLR(opt, 0.9)|CosineAnnealingLR(opt, 5)>.step()", "see(list(c.state_dict()) if isinstance(c, nn.Module) else 0)",
    "c(data(3)).backward(torch.ones(())) if False else see(c(data(3)).detach().sum())", "see(c(data(3).mT.contiguous().mT))", "see(c(data(6)[::2]))", "see(c(data(1).expand(3, *data(1).shape[1:])))", "y = c(data(3)); y.mul_(2); y.sum().backward()",
    "y = c(data(3)); del y", "see(c(data(0)))", "swa = torch.optim.swa_utils.AveragedModel(model); swa.update_parameters(model); see(swa(data(3)))", "nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 0.9, model.parameters())", "nn.utils.parametrize.remove_parametrizations(first(model, nn.Linear, nn.Conv2d), 'weight')",
    "torch.nn.init.<zeros_|ones_>(first(model, nn.Linear, nn.Conv2d, Gate).weight)", "model.extra = nn.Parameter(torch.ones(2))", "del model.last", "model.l0 = nn.Identity()",
)  # fmt: skip


class Tables(NamedTuple):
    """The rows of which programs are made."""

    any: tuple[tuple[str, str], ...]
    layers: dict[str, tuple[tuple[str, str], ...]]
    before: tuple[str, ...]
    compiled: tuple[str, ...]
    optimizers: tuple[str, ...]
    stepped: tuple[str, ...]
    actions: tuple[str, ...]


TABLES = Tables(ANY, LAYERS, BEFORE, COMPILED, OPTIMIZERS, STEPPED, ACTIONS)
CHOICE = re.compile(r"<([^<>]*\|[^<>]*)>")


def drawn(text: str, rng: random.Random) -> str:
    """The text with one of each of its choices."""
    return CHOICE.sub(lambda found: rng.choice(found[1].split("|")), text)
