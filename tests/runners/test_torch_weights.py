"""Loading weights: what does not fit is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.torch import TorchRunner
from tests.conformance.tiny import SHAPES, tiny_tensors


def load(config: ModelConfig, tensors: dict[str, Tensor]) -> TorchRunner:
    return TorchRunner(config, tensors.items(), torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_every_tensor_is_needed(config: ModelConfig) -> None:
    tensors = tiny_tensors(config)
    load(config, tensors)
    for name in tensors:
        rest = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(ValueError, match=f"{name} is missing"):
            load(config, rest)


def test_every_shape_is_checked() -> None:
    config = SHAPES["everything"]
    tensors = tiny_tensors(config)
    for name, tensor in tensors.items():
        wrong = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)
        with pytest.raises(ValueError, match=rf"{name} has shape .* instead of"):
            load(config, {**tensors, name: wrong})


def test_strangers_are_named() -> None:
    config = SHAPES["plain"]
    tensors = tiny_tensors(config)
    with pytest.raises(ValueError, match=r"layers.3.mlp.up_proj.bias is not expected"):
        load(config, {**tensors, "model.layers.3.mlp.up_proj.bias": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"is not expected; .* and 95 more"):
        load(config, tensors | {f"extra.{i}": torch.zeros(1) for i in range(100)})


def test_a_tied_head_may_be_stored_twice() -> None:
    config = SHAPES["everything"]
    tensors = tiny_tensors(config)
    load(config, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    untied = replace(config, has_tied_embeddings=False)
    with pytest.raises(ValueError, match=r"lm_head.weight is missing"):
        load(untied, tensors)
