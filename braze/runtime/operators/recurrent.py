"""``braze::mkldnn_rnn_layer``: a layer of oneDNN's LSTM that leaves its backward what that needs.

PyTorch's own fills its last result, the workspace, only where grad mode is on. Compiled halves run with grad mode off.
"""

from __future__ import annotations

from typing import Any

import torch

_WHOLE = torch.ops.aten.mkldnn_rnn_layer.default

_library = torch.library.Library("braze", "FRAGMENT")
_library.define(str(_WHOLE._schema).removeprefix("aten::"))


def _run(*args: Any) -> Any:
    with torch.enable_grad():
        return _WHOLE(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args))


_library.impl("mkldnn_rnn_layer", _run, "CPU")
_library.impl("mkldnn_rnn_layer", _WHOLE, "Meta")

OPERATOR = torch.ops.braze.mkldnn_rnn_layer.default
