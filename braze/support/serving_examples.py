"""Programs that provoke the codes of serving: what is decided (BZ71xx), and steps (BZ73xx)."""

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
}
