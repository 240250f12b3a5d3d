"""The readable runner: a decoder of the Llama family on PyTorch, for any device."""

from __future__ import annotations

import torch

from glimpse.models import ModelFiles, load_config, read_tensors
from glimpse.runners.torch.placement import place
from glimpse.runners.torch.runner import CAPABILITIES, TorchRunner

__all__ = ["CAPABILITIES", "TorchRunner", "describe", "load"]


def load(
    files: ModelFiles,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> TorchRunner:
    """Read a model; device and dtype as for ``load_runner``."""
    chosen, element = place(device, dtype)
    return TorchRunner(load_config(files), read_tensors(files, element), chosen, element)


def describe() -> str:
    device, dtype = place(None, None)
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    return f"PyTorch {torch.__version__} on {where}, {str(dtype).removeprefix('torch.')}"
