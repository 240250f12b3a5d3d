"""Back ends behind the ``Runner`` protocol, by name; one is imported only when it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from torch import cuda  # not torch itself: that name is a submodule's here

from glimpse.config import RunnerOptions
from glimpse.models import ModelFiles
from glimpse.types import Capabilities, Runner

_MODULES = {"native": "glimpse.runners.native", "torch": "glimpse.runners.torch"}

logger = logging.getLogger(__name__)


class _RunnerModule(Protocol):
    """What the package of a runner offers."""

    CAPABILITIES: Capabilities
    describe: Callable[[], str]
    load: Callable[[ModelFiles, RunnerOptions], Runner]


def names() -> list[str]:
    return list(_MODULES)


def choose(name: str = "auto", options: RunnerOptions | None = None) -> str:
    """The runner that ``name`` stands for: ``auto`` is the native one where it can be had and can
    do what ``options`` ask for, else torch, which it says. Raises ValueError for an unknown one.
    """
    if name != "auto":
        if name not in _MODULES:
            raise ValueError(f"unknown runner {name!r}; valid: auto, {', '.join(_MODULES)}")
        return name
    reason = _why_not_native(options or RunnerOptions())
    if reason is not None:
        logger.warning("runner auto takes torch: %s", reason)
    return "native" if reason is None else "torch"


def capabilities(name: str) -> Capabilities:
    """What a runner can do; nothing of a model is loaded."""
    return _module(name).CAPABILITIES


def describe(name: str) -> str:
    """One line for a person: what the runner would use on this machine."""
    return _module(name).describe()


def load_runner(name: str, files: ModelFiles, options: RunnerOptions | None = None) -> Runner:
    """Load a model into a runner.

    Raises ValueError for a runner or an option that cannot be had, ModelError for files that cannot
    be read.
    """
    options = options or RunnerOptions()
    return _module(choose(name, options)).load(files, options)


def _why_not_native(options: RunnerOptions) -> str | None:
    from glimpse.runners.native import why_unavailable

    if options.device not in (None, "cpu"):
        return f"device={options.device} was asked for"
    if options.device is None and cuda.is_available():
        return "there is a GPU"
    if options.dtype is not None:
        return f"dtype={options.dtype} was asked for"
    return why_unavailable()


def _module(name: str) -> _RunnerModule:
    return cast(_RunnerModule, import_module(_MODULES[choose(name)]))
