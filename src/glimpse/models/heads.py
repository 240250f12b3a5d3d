"""Read draft heads: Medusa's and EAGLE-3's official checkpoints, checked against the target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.models.config import load_config
from glimpse.models.errors import ModelError, read_json
from glimpse.models.files import ModelFiles
from glimpse.models.tensors import read_tensors
from glimpse.types import DraftHead

MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
EAGLE_FILES = ("model.safetensors", "pytorch_model.bin")
_EMBEDDING = "model.embed_tokens.weight"

Shapes = dict[str, tuple[int, ...]]


def load_head(folder: str, target: ModelFiles) -> DraftHead:
    """The head in a folder: Medusa's ``medusa_lm_head.pt``, or EAGLE-3's ``config.json`` and
    ``pytorch_model.bin``, or either's safetensors.

    Raises ModelError for a folder that holds neither, and names a tensor that is missing or of a
    shape that does not fit the target.
    """
    path, config = Path(folder).expanduser(), load_config(target)
    for name in MEDUSA_FILES:
        if (path / name).is_file():
            return _medusa(path / name, config)
    for name in EAGLE_FILES:
        if (path / name).is_file() and (path / "config.json").is_file():
            return _eagle3(path / name, config, target)
    raise ModelError(
        f"draft head {folder!r}: no such folder, or it holds neither {' nor '.join(MEDUSA_FILES)} "
        f"(Medusa) nor config.json with {' or '.join(EAGLE_FILES)} (EAGLE-3)"
    )


def _medusa(path: Path, config: ModelConfig) -> DraftHead:
    tensors = _read(path)
    hidden = config.hidden_size
    numbers = {int(found[1]) for name in tensors if (found := re.match(r"(\d+)\.", name))}
    shapes: Shapes = {}
    for number in range(max(numbers, default=0) + 1):
        shapes[f"{number}.0.linear.weight"] = (hidden, hidden)
        shapes[f"{number}.0.linear.bias"] = (hidden,)
        shapes[f"{number}.1.weight"] = (config.vocab_size, hidden)
    unknown = sorted(tensors.keys() - shapes.keys())
    if unknown:
        # Another layer in a block would be left out in silence.
        raise ModelError(f"{path}: unknown tensor {unknown[0]!r} in a Medusa head")
    return DraftHead("medusa", _checked(path, tensors, shapes))


def _eagle3(path: Path, config: ModelConfig, target: ModelFiles) -> DraftHead:
    settings = read_json(path.parent / "config.json")
    tensors = _read(path)
    found = dict(_checked(path, tensors, _eagle3_shapes(path, settings, config)))
    if _EMBEDDING not in found:
        # The head reads the target's own: the first tensor of all.
        found[_EMBEDDING] = dict(islice(read_tensors(target, torch.float32), 1))[_EMBEDDING]
    ids = torch.arange(len(found["d2t"])) + found["d2t"]
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise ModelError(
            f"{path}: d2t leads to token {int(ids.max())}: must be from 0 to "
            f"{config.vocab_size - 1}"
        )
    return DraftHead("eagle3", found, settings)


def _eagle3_shapes(path: Path, settings: Mapping[str, Any], config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    try:
        num_heads = int(settings["num_attention_heads"])
        num_kv_heads = int(settings.get("num_key_value_heads") or num_heads)
        head_dim = int(settings.get("head_dim") or settings["hidden_size"] // num_heads)
        inner = int(settings["intermediate_size"])
        size = int(settings.get("draft_vocab_size") or config.vocab_size)
    except (KeyError, TypeError, ValueError) as error:
        config_path = path.parent / "config.json"
        raise ModelError(f"{config_path}: missing or not a number: {error}") from error
    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    return {
        "fc.weight": (hidden, 3 * hidden),
        f"{attention}.q_proj.weight": (num_heads * head_dim, 2 * hidden),
        f"{attention}.k_proj.weight": (num_kv_heads * head_dim, 2 * hidden),
        f"{attention}.v_proj.weight": (num_kv_heads * head_dim, 2 * hidden),
        f"{attention}.o_proj.weight": (hidden, num_heads * head_dim),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        f"{mlp}.gate_proj.weight": (inner, hidden),
        f"{mlp}.up_proj.weight": (inner, hidden),
        f"{mlp}.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (size, hidden),
        "d2t": (size,),
        "t2d": (config.vocab_size,),
    }


def _checked(path: Path, tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    for name, shape in shapes.items():
        if name not in tensors:
            raise ModelError(f"{path}: tensor {name!r} is missing")
        if tuple(tensors[name].shape) != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {[*tensors[name].shape]}, the target needs "
                f"{[*shape]}"
            )
    return {name: tensors[name] for name in shapes}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            stored: dict[str, Tensor] = load_file(path)
            return stored
        read: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return read
    except Exception as error:  # pickle, zip and safetensors each have their own
        raise ModelError(f"cannot read {path}: {error}") from error
