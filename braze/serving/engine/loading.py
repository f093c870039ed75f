"""Models from a folder in Hugging Face's layout: ``config.json`` and ``*.safetensors``; and such folders with random weights."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from braze.serving.engine.models.config import LLAMA, ModelConfig, read_config, split, tokens_of
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.models.deepseek import deepseek
from braze.serving.engine.models.llama import llama
from braze.serving.engine.models.parallel import ONE, Ranks
from braze.serving.policy.fields import refuse
from braze.support.errors import UserError

#: parts of checkpoints that a decoder computes itself, or has no use for
_IGNORED = ("rotary_emb.inv_freq",)
#: the files of a model on a hub that are read
_WANTED = ("*.safetensors", "*.json", "tokenizer*", "*.jinja")


def load_model(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    ranks: Ranks = ONE,
    drafting: bool = False,
) -> Decoder:
    """The decoder of a folder, with its weights, in eval mode; ``dtype``: other than the folder's; ``ranks``: who shares it, of which this has a part;
    ``drafting``: with its learned heads that guess, where the folder has some.

    Raises BZ7403 for a model that is not served and BZ7404 where files are missing or do not fit.
    """
    if not isinstance(folder, str | Path):
        raise refuse("folder", folder, "the path of a folder with config.json and *.safetensors")
    folder = Path(folder)
    config = split(read_config(_read_json(folder / "config.json")), ranks)
    config = dataclasses.replace(config, drafting=drafting, eos=_ends(folder, config))
    model = build(config, device, dtype)
    load_weights(model, folder)
    return model


def _ends(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """The tokens that end an answer: those of ``generation_config.json`` where it names some, as for transformers' ``generate``. Models that chat end turns by tokens that their ``config.json`` need not name."""
    path = folder / "generation_config.json"
    named = tokens_of(_read_json(path).get("eos_token_id")) if path.exists() else ()
    return named or config.eos


def model_folder(model: str | Path) -> Path:
    """The folder of a model: the one of that path, or what Hugging Face's hub has by that name ("owner/model"), from this machine's copies where there is one.

    Raises BZ7404 where there is neither.
    """
    path = Path(model)
    if path.exists() or re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(model)) is None:
        return path
    try:
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(str(model), allow_patterns=list(_WANTED)))
    except Exception as error:  # of many kinds, from no such name to no network
        why = (
            f"there is no such folder, and the hub gives nothing: {str(error).strip().partition(chr(10))[0]}"
        )
        raise _unfit(path, why) from error


def build(config: ModelConfig, device: str | torch.device, dtype: torch.dtype | None = None) -> Decoder:
    """A decoder on a device whose weights are not set yet."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or config.dtype)
    try:
        with torch.device(device):
            return (llama if config.architecture in LLAMA else deepseek)(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def load_weights(model: Decoder, folder: Path) -> None:
    """Copy each tensor of the folder's files to its place. Raises BZ7404 where one is missing, left over, or of another shape."""
    places = model.places()
    missing, left = set(places), []
    for name, tensor in _tensors(folder):
        place = places.get(name)
        if place is None:
            tied = model.config.tied and name == "lm_head.weight"
            if not tied and not name.endswith(_IGNORED) and not _of_a_head(name, model):
                left.append(name)
            continue
        tensor = model.config.ranks.part(tensor, place.shape)
        if place.shape != tensor.shape:
            raise _unfit(folder, f"{name} has shape {list(tensor.shape)}, the model {list(place.shape)}")
        place.copy_(tensor)
        missing.discard(name)
    if missing or left:
        told = f"{len(missing)} tensors are missing ({_some(missing)}), {len(left)} left over ({_some(left)})"
        raise _unfit(folder, told)


def write_random(
    folder: str | Path, config: Mapping[str, Any], seed: int = 0, device: str | torch.device = "cpu"
) -> Path:
    """Write a folder for a ``config.json`` with random weights: products keep the size of what they are given."""
    if not isinstance(config, Mapping):
        raise refuse("config", config, "what config.json holds")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1))
    model = build(dataclasses.replace(read_config(config), drafting=True), device)
    fill_random(model, seed)
    tensors = {name: place.cpu().contiguous().clone() for name, place in model.places().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@torch.no_grad()
def fill_random(model: Decoder, seed: int = 0) -> None:
    """Random weights where a checkpoint's would go; norms are ones."""
    device = next(model.parameters()).device
    numbers = torch.Generator(device).manual_seed(seed)
    for name, place in model.places().items():
        if "norm" in name:
            place.fill_(1)
        elif place.dim() == 1:
            place.zero_()
        else:
            place.normal_(generator=numbers).mul_(place.shape[-1] ** -0.5)


def _of_a_head(name: str, model: Decoder) -> bool:
    """Whether a tensor is of a learned head that the model does not have, or is the model's own embedding or head again."""
    found = re.match(r"model\.layers\.(\d+)\.(.*)", name)
    layers = model.config.layers
    if found is None or not layers <= int(found[1]) < layers + model.config.draft_heads:
        return False
    return not model.config.drafting or found[2] in ("embed_tokens.weight", "shared_head.head.weight")


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _unfit(folder, "it has no *.safetensors")
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  it is no dict
                    yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unfit(folder, f"{file.name} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    folder = path.parent
    if not folder.is_dir():
        raise _unfit(folder, "it is a file" if folder.exists() else "there is no such folder")
    if not path.exists():
        raise _unfit(folder, f"it has no {path.name}")
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _unfit(folder, f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise _unfit(folder, f"{path.name} holds no JSON object")
    return found


def _unfit(folder: Path, why: str) -> UserError:
    return UserError(
        "BZ7404",
        f"the weights in {folder} cannot be loaded",
        why=why,
        hints=("the folder is to hold config.json and *.safetensors, as save_pretrained writes them",),
    )


def _some(names: Any) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "") or "none"
