"""``glimpse methods``: what there is, with papers and options."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from glimpse import runners
from glimpse.acceptance import acceptances
from glimpse.cli import options
from glimpse.config import Method
from glimpse.controllers import controllers
from glimpse.drafters import drafters
from glimpse.methods import METHODS, check_runner, needs, needs_draft_model, needs_head
from glimpse.registry import Registry
from glimpse.selection import selections

REGISTRIES: tuple[Registry[Any], ...] = (selections, drafters, controllers, acceptances)


def methods(json: options.Json = False) -> None:
    """List methods, and the plugins they are combined from."""
    if json:
        options.print_json(_as_dict())
        return
    console = Console()
    table = Table(title="methods", title_justify="left")
    for column in ("method", "drafter", "selection", "controller", "needs", "runs on", "paper"):
        table.add_column(column, overflow="fold")
    for method in METHODS.values():
        table.add_row(
            method.name,
            method.drafter or "-",
            method.selection or "-",
            method.controller,
            ", ".join(_needs(method)) or "-",
            ", ".join(_runners(method)),
            method.paper,
        )
    console.print(table)
    for registry in REGISTRIES:
        console.print(_plugins(registry))


def _plugins(registry: Registry[Any]) -> Table:
    table = Table(title=registry.kind, title_justify="left")
    for column in ("name", "options and defaults", "what it is"):
        table.add_column(column, overflow="fold")
    for name in registry.names():
        shown = ", ".join(f"{key}={value}" for key, value in registry.options(name).items())
        table.add_row(name, shown or "-", _summary(registry, name))
    return table


def _summary(registry: Registry[Any], name: str) -> str:
    return (registry.get(name).__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


def _needs(method: Method) -> list[str]:
    head = needs_head(method)
    return [
        *needs(method),
        *(["a second model"] if needs_draft_model(method) else []),
        *([f"a head ({head})"] if head is not None else []),
    ]


def _runners(method: Method) -> list[str]:
    able = []
    for name in runners.names():
        try:
            check_runner(method, name, runners.capabilities(name))
        except ValueError:
            continue
        able.append(name)
    return able


def _as_dict() -> dict[str, Any]:
    return {
        "methods": {
            method.name: {
                "drafter": method.drafter,
                "selection": method.selection,
                "controller": method.controller,
                "acceptance": method.acceptance,
                "paper": method.paper,
                "needs": _needs(method),
                "runners": _runners(method),
            }
            for method in METHODS.values()
        },
        **{
            registry.kind: {name: registry.options(name) for name in registry.names()}
            for registry in REGISTRIES
        },
    }
