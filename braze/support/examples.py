"""For the codes that a user meets most: a program that provokes each, and what torch.compile calls it.

Each program runs as it stands; a test runs it and looks for its code. ``braze explain BZ1003`` prints it.
"""

from __future__ import annotations

from braze.support.record import record
from braze.support.serving_examples import PROGRAMS


@record
class Example:
    """A program that provokes a code; the same without it, if that is short; torch.compile's name for it."""

    text: str
    instead: str = ""
    counterpart: str = ""


EXAMPLES: dict[str, Example] = {
    "BZ0010": Example(
        'braze.compile(f, mode="max-autotune")', counterpart="the same modes, which there have their effect"
    ),
    "BZ0011": Example('braze.set_stance("eager")', 'braze.set_stance("force_eager")', "the same words"),
    "BZ0030": Example("braze.compile_optimizer(torch.optim.RMSprop(model.parameters()))"),
    "BZ1001": Example(
        """\
@braze.compile
def f(x):
    x = x + 1
    braze.graph_break()
    return x * 2

f(torch.ones(3))
""",
        counterpart="GB0025 Call to torch._dynamo.graph_break()",
    ),
    "BZ1002": Example(
        """\
import zlib

@braze.compile
def f(x, data):
    return x * zlib.crc32(data)

f(torch.ones(3), b"some bytes")
""",
        """\
@braze.compile
def f(x, checksum):
    return x * checksum

f(torch.ones(3), zlib.crc32(b"some bytes"))
""",
        "GB0007 Attempted to call function marked as skipped",
    ),
    "BZ1003": Example(
        """\
@braze.compile
def f(x):
    if x.sum() > 0:
        return x
    return -x

f(torch.ones(3))
""",
        """\
@braze.compile
def f(x):
    return torch.where(x.sum() > 0, x, -x)
""",
        "GB0170 Data-dependent branching",
    ),
    "BZ1004": Example(
        """\
@braze.compile
def f(x):
    return x * x.max().item()

f(torch.ones(3))
""",
        """\
@braze.compile
def f(x):
    return x * x.max()
""",
        "GB0124 Unsupported Tensor.item() call with capture_scalar_outputs=False",
    ),
    "BZ1005": Example(
        """\
@braze.disable
def log(x):
    print(x.mean())
    return x

@braze.compile
def f(x):
    return log(x + 1) * 2

f(torch.ones(3))
""",
        counterpart="GB0098 Skip calling torch.compiler.disable()d function",
    ),
    "BZ1006": Example(
        """\
@braze.compile
def f(x, formula):
    return eval(formula)

f(torch.ones(3), "x * 2")
""",
        """\
@braze.compile
def f(x, formula):
    return formula(x)

f(torch.ones(3), lambda x: x * 2)
""",
    ),
    "BZ1007": Example(
        """\
@braze.compile
def f(x):
    x = x + 1
    print("the mean is", x.mean())
    return x * 2

f(torch.ones(3))
""",
        counterpart="GB0059 Failed to trace builtin operator",
    ),
    "BZ1008": Example(
        """\
names = ", ".join(f"v{i}" for i in range(256))
exec(f'''
def outer({names}):
    def f():
        braze.graph_break()
        return [{names}]
    return f
''')
f = braze.compile(outer(*[torch.ones(3)] * 256))
f()
""",
        """\
def f(values):
    braze.graph_break()
    return values

braze.compile(f)([torch.ones(3)] * 256)
""",
    ),
    "BZ1009": Example(
        """\
@braze.compile
def f(xs):
    for x in xs:
        yield x * 2

list(f([torch.ones(3)]))
""",
        """\
@braze.compile
def double(x):
    return x * 2

def f(xs):
    for x in xs:
        yield double(x)
""",
        "GB0003 Attempt to trace generator",
    ),
    "BZ1010": Example(
        """\
class Config:
    def scale(self):
        return 2

@braze.compile
def f(x):
    Config.scale = lambda self: 3
    return x * Config().scale()

f(torch.ones(3))
""",
        """\
class Config:
    factor = 2

@braze.compile
def f(x):
    Config.factor = 3        # plain values of classes and objects are written after the graph
    return x * Config.factor
""",
        "attributes of classes are replayed there",
    ),
    "BZ1022": Example(
        """\
p = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([p])

@braze.compile
def f(x):
    optimizer.step()
    return x * 2

f(torch.ones(3))
""",
        counterpart="none: the step is traced",
    ),
    "BZ1011": Example(
        """\
@braze.compile
def f(x):
    return x.to_sparse() * 2

f(torch.ones(3))
""",
        counterpart="GB0015 Attempted to wrap sparse Tensor",
    ),
    "BZ1012": Example(
        """\
@braze.compile
def f(x):
    if x.dim() != 2:
        raise ValueError(f"a matrix is wanted, not {x.dim()} dimensions")
    return x.t()

try:
    f(torch.ones(3))
except ValueError:
    pass
""",
        counterpart="GB0088 Observed exception",
    ),
    "BZ1013": Example(
        """\
@braze.compile
def f(x):
    return torch.nonzero(x) * 2

f(torch.ones(3))
""",
        """\
@braze.compile
def f(x):
    return (x != 0) * 2      # a mask has a fixed shape
""",
        "GB0036 Dynamic shape operator",
    ),
    "BZ1014": Example(
        """\
@braze.compile
def f(x):
    return (row * 2 for row in x)

for row in f(torch.ones(3, 2)):
    row
""",
        """\
@braze.compile
def f(x):
    return [row * 2 for row in x]
""",
        "GB0092 Reconstruction failure",
    ),
    "BZ1015": Example(
        """\
@braze.compile(dynamic=True)
def f(x, n):
    return x.new_zeros(n & x.shape[0])

f(torch.ones(3), 5)
""",
        """\
@braze.compile(dynamic=False)
def f(x, n):
    return x.new_zeros(n & x.shape[0])
""",
    ),
    "BZ1016": Example(
        """\
def deep(x, n):
    return x if n == 0 else deep(x + 1, n - 1)

@braze.compile
def f(x):
    return deep(x, 900)

import sys
sys.setrecursionlimit(5000)
f(torch.ones(3))
"""
    ),
    "BZ1017": Example(
        """\
import time

@braze.compile
def f(x):
    return x * time.time()

f(torch.ones(3))
""",
        """\
@braze.compile
def f(x, now):
    return x * now

f(torch.ones(3), time.time())
""",
        "GB0007 Attempted to call function marked as skipped",
    ),
    "BZ1018": Example(
        """\
@braze.compile
def f(x, factors):
    for k in factors:
        x = x * k
    return x

f(torch.ones(3), iter([2, 3]))
""",
        """\
f(torch.ones(3), [2, 3])
""",
    ),
    "BZ1019": Example(
        """\
from torch.utils.checkpoint import checkpoint

shapes = []

def part(x):
    shapes.append(x.shape)
    return x.sin()

@braze.compile
def f(x):
    return checkpoint(part, x, use_reentrant=False) * 2

f(torch.ones(3, requires_grad=True))
""",
        """\
def part(x):
    return x.sin()
""",
        "HigherOrderOperator: Mutating a variable not in the current scope (SideEffects)",
    ),
    "BZ1020": Example(
        """\
@braze.compile(options={"capture_scalar_outputs": True})
def f(x, count):
    n = count.item()
    if n > 2:
        return x * n
    return x

f(torch.ones(3), torch.tensor(2))
""",
        """\
@braze.compile(options={"capture_scalar_outputs": True})
def f(x, count):
    n = count.item()
    torch._check(n <= 2)
    return x * n

f(torch.ones(3), torch.tensor(2))
""",
        counterpart="GB0170 Data-dependent branching",
    ),
    "BZ1021": Example(
        """\
@braze.compile(fullgraph=True)
def f(x):
    return torch.cond(x.sum() > 0, lambda x: x.sum(), lambda x: x.sin(), (x,))

f(torch.ones(3))
""",
        """\
@braze.compile(fullgraph=True)
def f(x):
    return torch.cond(x.sum() > 0, lambda x: x.sum().expand(3) + 0, lambda x: x.sin(), (x,))
""",
        "unmatched metadata of the branches of torch.cond",
    ),
    "BZ1101": Example(
        """\
@braze.compile(options={"recompile_limit": 2})
def f(x, mode):
    return x + 1 if mode == "plus" else x * len(mode)

for mode in ("plus", "a", "bb"):
    f(torch.ones(3), mode)
""",
        counterpart="torch._dynamo hit config.recompile_limit (8): it runs eagerly from then on",
    ),
    "BZ1102": Example(
        """\
@braze.compile
def f(x):
    return x * 2

f(torch.ones(3))
with braze.set_stance("fail_on_recompile"):
    try:
        f(torch.ones(3, dtype=torch.float64))
    except braze.RecompileError as error:
        print(error)
""",
        """\
f(torch.ones(3, dtype=torch.float64))        # warm up with it first
""",
        "Detected recompile when torch.compile stance is 'fail_on_recompile'",
    ),
    "BZ1103": Example(
        """\
@braze.compile(options={"recompile_limit": 2})
def f(x, mode):
    return x + 1 if mode == "plus" else x * len(mode)

for n in range(12):
    f(torch.ones(3), "m" * n)
"""
    ),
    "BZ1104": Example(
        """\
for step in range(20):
    f = braze.compile(lambda x: x * 2)
    f(torch.ones(3))
""",
        """\
f = braze.compile(lambda x: x * 2)
for step in range(20):
    f(torch.ones(3))
""",
    ),
    "BZ2021": Example(
        """\
@braze.compile
def f(x):
    y = x.exp()
    y.add_(1)  # exp keeps its result for the gradient
    return y

f(torch.ones(3, requires_grad=True))
""",
        """\
def f(x):
    return x.exp() + 1
""",
        "the same error, when it compiles",
    ),
    "BZ2023": Example(
        """\
x = torch.ones(3, requires_grad=True)
loss = braze.compile(lambda x: (x * x).sum())(x)
torch.autograd.grad(loss, x, create_graph=True)
""",
        counterpart="torch.compile with aot_autograd does not currently support double backward",
    ),
    "BZ7201": Example(
        """\
from braze.serving import direct_register_custom_op

def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3

direct_register_custom_op("example_scaled", doubled, dispatch_key="CPU")
direct_register_custom_op("example_scaled", tripled, dispatch_key="CPU")
""",
        """\
direct_register_custom_op("example_tripled", tripled, dispatch_key="CPU")
""",
    ),
    "BZ7203": Example(
        """\
from braze.serving import mark_splitting_op

mark_splitting_op("attention")
""",
        """\
mark_splitting_op("braze::unified_attention_with_output")
""",
    ),
    "BZ7205": Example(
        """\
from braze.serving import GraphPools

GraphPools("per_size")
""",
        """\
GraphPools("per_tier")
""",
    ),
    "BZ7206": Example(
        """\
from braze.serving import CUDAGraphMode, CUDAGraphWrapper

CUDAGraphWrapper(lambda x: x + 1, CUDAGraphMode.FULL_AND_PIECEWISE)
""",
        """\
CUDAGraphWrapper(lambda x: x + 1, CUDAGraphMode.FULL)
""",
    ),
    "BZ7209": Example(
        """\
from braze.serving import CompilationConfig, CompilerManager

CompilerManager(CompilationConfig(level=3), "inducktor")
""",
        """\
CompilerManager(CompilationConfig(level=3), "inductor")
""",
    ),
    "BZ7213": Example(
        """\
from braze.serving import CompilationConfig, ServingBackend

config = CompilationConfig(level=3, compile_sizes=["cudagraph_capture_sizes"])
with torch.no_grad():
    braze.compile(torch.nn.Linear(3, 3), backend=ServingBackend(config))(torch.ones(2, 3))
""",
        """\
ServingBackend(config, capture_sizes=[1, 2, 4])
""",
    ),
    "BZ7214": Example(
        """\
from braze.serving import CompilationConfig, ServingBackend

braze.compile(torch.nn.Linear(3, 3), backend=ServingBackend(CompilationConfig(level=3)))(torch.ones(2, 3))
""",
        """\
with torch.inference_mode():
    model(x)
""",
    ),
    "BZ7215": Example(
        """\
from braze.serving import support_torch_compile

@support_torch_compile
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
""",
        """\
@support_torch_compile(dynamic_arg_dims={"x": 0})
""",
    ),
    "BZ7405": Example(
        """\
from braze.serving.engine.sampling import SamplingParams

SamplingParams(temperature=-1.0)
""",
        """\
SamplingParams(temperature=0.0)
""",
    ),
    "BZ7505": Example(
        """\
from braze.serving.server.protocol import CompletionRequest

CompletionRequest(prompt="x", logprobs=5).params(room=100)
""",
        """\
CompletionRequest(prompt="x").params(room=100)
""",
    ),
    **{code: Example(program) for code, program in PROGRAMS.items()},
}
