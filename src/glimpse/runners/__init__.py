"""Back ends behind the ``Runner`` protocol, by name; one is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

import torch

from glimpse.models import ModelFiles
from glimpse.types import Capabilities, Runner

_MODULES = {"torch": "glimpse.runners.torch"}
_PREFERRED = ("torch",)
"""What ``auto`` takes, best first."""


class _RunnerModule(Protocol):
    """What the package of a runner offers."""

    CAPABILITIES: Capabilities
    describe: Callable[[], str]
    load: Callable[[ModelFiles, str | torch.device | None, str | torch.dtype | None], Runner]


def names() -> list[str]:
    return list(_MODULES)


def choose(name: str = "auto") -> str:
    """The runner that ``name`` stands for. Raises ValueError for an unknown one."""
    if name != "auto" and name not in _MODULES:
        raise ValueError(f"unknown runner {name!r}; valid: auto, {', '.join(_MODULES)}")
    return _PREFERRED[0] if name == "auto" else name


def capabilities(name: str) -> Capabilities:
    """What a runner can do; nothing of a model is loaded."""
    return _module(name).CAPABILITIES


def describe(name: str) -> str:
    """One line for a person: what the runner would use on this machine."""
    return _module(name).describe()


def load_runner(
    name: str,
    files: ModelFiles,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> Runner:
    """Load a model into a runner.

    The device defaults to a GPU if there is one, the dtype to float32 on a CPU and bfloat16 on a
    GPU. Raises ValueError for a runner, device or dtype that cannot be had, ModelError for files
    that cannot be read.
    """
    return _module(name).load(files, device, dtype)


def _module(name: str) -> _RunnerModule:
    return cast(_RunnerModule, import_module(_MODULES[choose(name)]))
