"""The table of named methods, and how a method becomes live plugins."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glimpse.acceptance import acceptances
from glimpse.config import Method
from glimpse.controllers import Controller, controllers
from glimpse.drafters import Drafter, drafters
from glimpse.registry import parse_spec
from glimpse.selection import Selection, selections
from glimpse.types import Capabilities, Statistics

METHODS = {
    method.name: method
    for method in (
        Method("autoregressive", paper="plain decoding: the baseline of every speed-up"),
        Method(
            "sparsespec-l",
            drafter="sparse_self",
            selection="verification",
            controller="efficiency",
            paper="SparseSpec-L (Liu et al. 2026), arXiv 2607.27735",
        ),
        Method(
            "streaming",
            drafter="sparse_self",
            selection="streaming",
            controller="efficiency",
            paper="StreamingLLM view (Xiao et al. 2023), arXiv 2309.17453",
        ),
        Method(
            "full",
            drafter="sparse_self",
            selection="full",
            controller="efficiency",
            paper="drafts over the whole KV: the ceiling of any selection's acceptance",
        ),
    )
}


@dataclass
class Plugins:
    """The live objects of a method; drafter and selection are None where it has none."""

    drafter: Drafter | None
    selection: Selection | None
    controller: Controller

    @property
    def statistics(self) -> Statistics:
        """What runners must record for this method."""
        return self.selection.statistics if self.selection else Statistics()


def get_method(
    name: str,
    *,
    selection: str | None = None,
    controller: str | None = None,
    acceptance: str | None = None,
    budget: float | None = None,
) -> Method:
    """A method of the table with the given parts replaced; ValueError if they do not fit."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; valid: {', '.join(METHODS)}")
    method = METHODS[name]
    changes = {"selection": selection, "controller": controller, "acceptance": acceptance}
    method = replace(method, **{key: value for key, value in changes.items() if value is not None})
    if budget is not None:
        if method.selection is None:
            raise ValueError(f"budget={budget}: method {name!r} has no selection to give it to")
        method = replace(method, selection=with_option(method.selection, "budget", budget))
    build(method)
    return method


def with_option(spec: str, key: str, value: object) -> str:
    """A plugin spec with ``key=value`` added, or in the place of what it said of ``key``."""
    name, options = parse_spec(spec)
    return f"{name}:" + ",".join(f"{k}={v}" for k, v in {**options, key: value}.items())


def build(method: Method) -> Plugins:
    """Build a method's plugins. Raises ValueError for unknown names, options and combinations."""
    if method.acceptance != "auto":
        acceptances.get(method.acceptance)
    drafter = drafters.build(method.drafter) if method.drafter else None
    selection = selections.build(method.selection) if method.selection else None
    if drafter is None and method.controller != Method.controller:
        raise ValueError(f"method {method.name!r} drafts nothing: controller has no effect")
    uses_view = drafter is not None and drafter.uses_view
    if uses_view and selection is None:
        raise ValueError(
            f"drafter {method.drafter!r} needs a selection; valid: {selections.names()}"
        )
    if selection is not None and not uses_view:
        raise ValueError(f"drafter {method.drafter!r} uses no view: selection has no effect")
    return Plugins(drafter, selection, controllers.build(method.controller))


def check_runner(method: Method, runner_name: str, capabilities: Capabilities) -> None:
    """Raise ValueError if a runner cannot do what a method needs; asked before loading anything."""
    plugins = build(method)
    needs = plugins.statistics
    missing = [
        what
        for what, is_missing in (
            ("a glimpse view", plugins.selection and "glimpse" not in capabilities.views),
            ("window statistics", needs.window and "window" not in capabilities.statistics),
            (
                "cumulative statistics",
                needs.is_cumulative and "cumulative" not in capabilities.statistics,
            ),
        )
        if is_missing
    ]
    if missing:
        raise ValueError(
            f"method {method.name!r} needs {' and '.join(missing)}, which runner "
            f"{runner_name!r} does not have"
        )
