"""The readable runner: a decoder of the Llama family on PyTorch, for any device."""

from __future__ import annotations

import torch

from glimpse.config import RunnerOptions
from glimpse.models import ModelFiles, load_config, read_tensors
from glimpse.runners.torch.placement import place
from glimpse.runners.torch.runner import CAPABILITIES, TorchRunner

__all__ = ["CAPABILITIES", "TorchRunner", "describe", "load"]


def load(files: ModelFiles, options: RunnerOptions) -> TorchRunner:
    """Read a model. The device defaults to a GPU if there is one, the dtype to float32 on a CPU and
    bfloat16 on a GPU; threads are those of the whole process.
    """
    options.refuse("torch", "kv_dtype", "activations")
    chosen, element = place(options.device, options.dtype)
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"threads={options.threads}: must be at least 1")
        torch.set_num_threads(options.threads)
    return TorchRunner(load_config(files), read_tensors(files, element), chosen, element)


def describe() -> str:
    device, dtype = place(None, None)
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    return f"PyTorch {torch.__version__} on {where}, {str(dtype).removeprefix('torch.')}"
