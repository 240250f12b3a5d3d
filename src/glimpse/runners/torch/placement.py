"""Where a model lives and in which precision it computes."""

from __future__ import annotations

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def place(
    device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[torch.device, torch.dtype]:
    """Check a choice and fill in the defaults: a GPU if there is one; float32 on a CPU, else
    bfloat16. Raises ValueError for a device or dtype that cannot be had.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = _device(device)
    if dtype is None:
        return chosen, torch.float32 if chosen.type == "cpu" else torch.bfloat16
    element = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if element is None or element not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    return chosen, element


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms, rotation, softmax and logits: float32, or float64 if the model's."""
    return torch.promote_types(dtype, torch.float32)


def _device(device: str | torch.device) -> torch.device:
    num_gpus = torch.cuda.device_count()
    valid = ["cpu", *(["cuda"] if num_gpus else []), *(f"cuda:{i}" for i in range(num_gpus))]
    if str(device) not in valid:
        raise ValueError(f"device={str(device)!r}: must be one of {', '.join(valid)}")
    return torch.device(device)
