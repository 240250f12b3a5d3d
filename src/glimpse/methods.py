"""The table of named methods, and how a method becomes live plugins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from glimpse.acceptance import acceptances
from glimpse.config import Method
from glimpse.controllers import Controller, controllers
from glimpse.drafters import Assets, Drafter, drafters
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
            "magicdec-streaming",
            drafter="sparse_self",
            selection="streaming:sink_size=16",
            controller="fixed:k=4",
            paper="MagicDec (Chen et al. 2024), arXiv 2408.11049, with a StreamingLLM view",
        ),
        Method(
            "magicdec-snapkv",
            drafter="sparse_self",
            selection="snapkv:is_static=true",
            controller="fixed:k=4",
            paper="MagicDec (Chen et al. 2024), arXiv 2408.11049, with a SnapKV view",
        ),
        Method(
            "snapkv",
            drafter="sparse_self",
            selection="snapkv",
            controller="efficiency",
            paper="SnapKV view (Li et al. 2024), arXiv 2404.14469",
        ),
        Method(
            "sparsespec-pillar",
            drafter="sparse_self",
            selection="pillar",
            controller="fixed:k=8",
            paper="SparseSpec (Zhao et al. 2025), arXiv 2512.01278",
        ),
        *(
            Method(
                name,
                drafter="sparse_self",
                selection=name,
                controller=controller,
                paper=paper,
            )
            for name, controller, paper in (
                ("vegas", "fixed:k=6", "Vegas (Yue et al. 2026), arXiv 2602.07223"),
                ("h2o", "efficiency", "H2O view (Zhang et al. 2023), arXiv 2306.14048"),
                (
                    "scissorhands",
                    "efficiency",
                    "Scissorhands view (Liu et al. 2023), arXiv 2305.17118",
                ),
                ("pyramidkv", "efficiency", "PyramidKV view (Cai et al. 2024), arXiv 2406.02069"),
                ("quest", "efficiency", "Quest view (Tang et al. 2024), arXiv 2406.10774"),
                ("arkvale", "efficiency", "ArkVale view (Chen et al. 2024), NeurIPS 37"),
                ("chunk", "efficiency", "TriForce's retrieval (Sun et al. 2024), arXiv 2404.11912"),
                ("infinigen", "efficiency", "InfiniGen view (Lee et al. 2024), OSDI 2024"),
            )
        ),
        Method(
            "ngram",
            drafter="ngram",
            controller="fixed:k=10",
            paper="prompt lookup (Saxena 2023), github.com/apoorvumang/prompt-lookup-decoding",
        ),
        Method(
            "auxiliary",
            drafter="auxiliary",
            controller="fixed:k=4",
            paper="speculative decoding with a smaller model (Leviathan et al. 2022), "
            "arXiv 2211.17192",
        ),
        Method(
            "layerskip",
            drafter="layerskip",
            selection="full",
            controller="fixed:k=6",
            paper="LayerSkip (Elhoushi et al. 2024), arXiv 2404.16710",
        ),
        Method(
            "triforce",
            drafter="hierarchical:inner=auxiliary",
            selection="chunk",
            controller="fixed:k=6",
            paper="TriForce (Sun et al. 2024), arXiv 2404.11912",
        ),
        Method(
            "hierarchical",
            drafter="hierarchical:inner_k=3",
            selection="verification",
            controller="fixed:k=6",
            paper="TriForce's hierarchy (Sun et al. 2024), arXiv 2404.11912, with prompt lookup "
            "inside and SparseSpec-L's glimpse",
        ),
        Method(
            "medusa",
            drafter="medusa",
            controller="fixed:k=5",
            paper="Medusa (Cai et al. 2024), arXiv 2401.10774, a chain of its heads' tokens",
        ),
        Method(
            "eagle3",
            drafter="eagle3",
            controller="fixed:k=5",
            paper="EAGLE-3 (Li et al. 2025), arXiv 2503.01840, a chain",
        ),
        Method(
            "rapid",
            drafter="rapid",
            controller="confidence:threshold=0.1,is_tuned=false,max_k=10",
            paper="RAPID (Chen et al. 2025), arXiv 2502.20330, the target on retrieved chunks",
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


def needs(method: Method) -> dict[str, Callable[[Capabilities], bool]]:
    """What a method asks of a runner, in words, and whether capabilities have it."""
    plugins = build(method)
    statistics, drafter = plugins.statistics, plugins.drafter
    wanted = plugins.selection.needs if plugins.selection else frozenset()
    asked: dict[str, tuple[bool, Callable[[Capabilities], bool]]] = {
        "a glimpse view": (plugins.selection is not None, lambda c: "glimpse" in c.views),
        "window statistics": (statistics.window > 0, lambda c: "window" in c.statistics),
        "cumulative statistics": (statistics.is_cumulative, lambda c: "cumulative" in c.statistics),
        "a budget for each layer": ("layers" in wanted, lambda c: "layers" in c.index),
        "an index by queries": ("ranking" in wanted, lambda c: "ranking" in c.index),
        "an early exit": (
            drafter is not None and drafter.needs_early_exit,
            lambda c: c.has_early_exit,
        ),
        "hidden states": (
            drafter is not None and drafter.needs_head is not None,
            lambda c: c.has_hidden_states,
        ),
    }
    return {what: has for what, (is_asked, has) in asked.items() if is_asked}


def check_runner(method: Method, runner_name: str, capabilities: Capabilities) -> None:
    """Raise ValueError if a runner cannot do what a method needs; asked before loading anything."""
    missing = [what for what, has in needs(method).items() if not has(capabilities)]
    if missing:
        raise ValueError(
            f"method {method.name!r} needs {' and '.join(missing)}, which runner "
            f"{runner_name!r} does not have"
        )


def needs_draft_model(method: Method) -> bool:
    drafter = build(method).drafter
    return drafter is not None and drafter.needs_draft_model


def needs_head(method: Method) -> str | None:
    """The kind of head that a method drafts with, if any."""
    drafter = build(method).drafter
    return drafter.needs_head if drafter is not None else None


def check_assets(method: Method, *, has_draft_model: bool, has_head: bool) -> None:
    """Raise ValueError if a method needs what was not given; asked before anything is loaded."""
    if needs_draft_model(method) and not has_draft_model:
        raise ValueError(
            f"method {method.name!r} drafts with a second model, which was not given: name a "
            "smaller one with the same tokenizer (--draft-model, or draft_model=...)"
        )
    kind = needs_head(method)
    if kind is not None and not has_head:
        raise ValueError(
            f"method {method.name!r} drafts with a head trained for the model, which was not "
            f"given: name the folder of a {kind} checkpoint (--draft-head, or draft_head=...)"
        )


def live(method: Method, assets: Assets) -> Plugins:
    """A method's plugins with what they need beside the target. Raises ValueError if it is not
    there, or not for this method.
    """
    has_draft_model, head = assets.draft_runner is not None, assets.head
    check_assets(method, has_draft_model=has_draft_model, has_head=head is not None)
    plugins = build(method)
    if plugins.drafter is not None:
        kind = plugins.drafter.needs_head
        if kind is not None and head is not None and head.kind != kind:
            raise ValueError(f"method {method.name!r} needs a head of kind {kind}, not {head.kind}")
        plugins.drafter.attach(assets)
    return plugins
