"""Programs that provoke the codes of serving: what is decided (BZ71xx), pieces (BZ72xx), steps (BZ73xx), engine and server (BZ74xx, BZ75xx)."""

from __future__ import annotations

_ROWS = """\
import torch
from braze.serving import Slot, StaticBuffers
from braze.serving.step.slots import Extent
"""

#: code -> program
PROGRAMS: dict[str, str] = {
    "BZ7101": """\
from braze.serving import CompilationConfig
CompilationConfig(level=3, cudagraph_capture_size=[1, 2, 4])
""",
    "BZ7102": """\
from braze.serving import CompilationConfig
CompilationConfig(level=3, cudagraph_mode="FULL", use_cudagraph=False)
""",
    "BZ7103": """\
from braze.serving import CompilationConfig
CompilationConfig(level="PIECEWIES")
""",
    "BZ7104": """\
from braze.serving import AttentionCGSupport, CompilationConfig, Config
Config(compilation_config=CompilationConfig(level=3, cudagraph_mode="FULL")).resolve(AttentionCGSupport.NEVER)
""",
    "BZ7105": """\
from braze.serving import CompilationConfig, Config
Config(compilation_config=CompilationConfig(level=3, cudagraph_capture_sizes=[4096]), max_num_batched_tokens=512)
""",
    "BZ7106": """\
from braze.serving import CompilationConfig, Config
Config(compilation_config=CompilationConfig(level=3, cudagraph_capture_sizes=[4, 8], compile_sizes=[5]))
""",
    "BZ7107": """\
from braze.serving import CompilationConfig, Config
Config(compilation_config=CompilationConfig(level=3, cudagraph_capture_sizes=[8, 5120]), max_num_batched_tokens=511)
""",
    "BZ7108": """\
from braze.serving import AttentionCGSupport, CompilationConfig, Config
Config(compilation_config=CompilationConfig(level="O2"), num_speculative_tokens=6).resolve(
    AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
)
""",
    "BZ7109": """\
from braze.serving import CompilationConfig, Config
Config(compilation_config=CompilationConfig(level=3, cudagraph_capture_sizes="traffic:no_such_file"))
""",
    "BZ7110": """\
from braze.serving import CompilationConfig, Config, CUDAGraphMode
from braze.serving.policy.data_parallel import Batch, dispatch_across
dispatcher = Config(compilation_config=CompilationConfig(level=3)).dispatcher(CUDAGraphMode.PIECEWISE)
dispatch_across(dispatcher, Batch(4, 4, 1), lambda row: [row, [4]])
""",
    "BZ7301": """\
from braze.serving import Context, forward_context, get_forward_context, recorded_reads
with forward_context(None, None, Context(torch.arange(4), batch_size=3)), recorded_reads():
    get_forward_context().context.batch_size
""",
    "BZ7302": """\
from braze.serving import forward_context, get_forward_context, recorded_reads
with forward_context({"longest": 64}), recorded_reads() as reads:
    get_forward_context().attn_metadata["longest"]
with forward_context({"longest": 65}):
    reads.check(get_forward_context())
""",
    "BZ7303": """\
from braze.serving import forward_context, get_forward_context, recorded_reads
with forward_context(), recorded_reads():
    get_forward_context().attn_metadata = {}
""",
    "BZ7304": _ROWS + 'StaticBuffers({"slot_mapping": Slot(pad="first")}, Extent(8, 8))\n',
    "BZ7305": _ROWS
    + """\
buffers = StaticBuffers({"x": Slot()}, Extent(8, 8))
buffers.stage({"x": torch.ones(3)}, Extent(2, 2), Extent(4, 4))
""",
    "BZ7306": _ROWS
    + """\
buffers = StaticBuffers({"x": Slot()}, Extent(8, 8))
buffers.stage({"x": torch.ones(9)}, Extent(9, 9), Extent(9, 9))
""",
    "BZ7307": """\
m = braze.serve(torch.nn.Linear(4, 4), level=0)
with braze.forward_context(uniform_q=2):
    m(torch.ones(3, 4))
""",
    "BZ7308": """\
m = braze.serve(torch.nn.Bilinear(4, 4, 4), level=0)
m(torch.ones(3, 4), torch.ones(2, 4))
""",
    "BZ7311": """\
m = braze.serve(torch.nn.Linear(4, 4), level=0, cudagraph_mode="FULL")
m.capture()
""",
    "BZ7202": """\
from braze.serving import direct_register_custom_op

direct_register_custom_op("example_bare", lambda x: x)
""",
    "BZ7216": """\
from braze.serving import CompilationConfig, support_torch_compile

@support_torch_compile
class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor):
        self.seen.add_(x.sum(0))
        return x + self.seen

with torch.inference_mode():
    Model(CompilationConfig(level=2))(torch.ones(2, 3))
""",
    "BZ7217": """\
from braze.serving import CompilationConfig, support_torch_compile

@support_torch_compile(evaluate_guards=True)
class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()

    def forward(self, x: torch.Tensor, scale: float = 1.0):
        return x * scale

model = Model(CompilationConfig(level=2))
with torch.inference_mode():
    model(torch.ones(2, 3))
    model(torch.ones(2, 3), scale=2.0)
""",
    "BZ7401": """\
import braze.serving.engine.attention.operators
from braze.serving.step.context import AttentionMetaData, forward_context

x = torch.randn(1, 1, 8)
ends, one = torch.tensor([0, 1], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
metadata = AttentionMetaData(ends, one, one[:, None] - 1, torch.zeros(1, dtype=torch.int64), 1, 1, 1)
with forward_context(metadata):
    torch.ops.braze.unified_attention_with_output(x, x, x, x.clone(), 0, 1.0)
""",
    "BZ7403": """\
from braze.serving.engine.models.config import read_config

read_config({"architectures": ["GPT2LMHeadModel"]})
""",
    "BZ7404": """\
from braze.serving.engine.loading import load_model

load_model("no/such/folder")
""",
    "BZ7406": """\
from braze.serving.engine.requests import Request
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scheduler import Limits, Scheduler

scheduler = Scheduler(Limits(max_model_len=8), blocks=4)
scheduler.add(Request("first", tuple(range(20)), SamplingParams()))
""",
    "BZ7407": """\
from braze.serving.engine.requests import Request
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scheduler import Limits, Scheduler

scheduler = Scheduler(Limits(max_waiting=1), blocks=4)
for name in "ab":
    scheduler.add(Request(name, (1, 2), SamplingParams(4)))
""",
    "BZ7502": """\
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models

from braze.serving.server.tokens import FileTokens

folder = Path(tempfile.mkdtemp())
Tokenizer(models.BPE({"a": 0}, [])).save(str(folder / "tokenizer.json"))
FileTokens(folder).chat([{"role": "user", "content": "a"}])
""",
    "BZ7503": """\
from pathlib import Path

from braze.serving.server.tokens import tokens_of

tokens_of(Path("a/model/with/random/weights"), vocab=300)
""",
}
