"""The target's first layers draft for the whole."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar

from glimpse.drafters import Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.sparse_self import draft_through
from glimpse.types import Draft, KVView, Runner, Sequence


@drafters.register
@dataclass
class LayerSkip(Drafter):
    """LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710): stop after ``exit_layer`` layers, then
    final norm and head.

    The paper's E = 8. It drafts well only for models that were trained for early exits. Here the
    verify pass computes the first layers again, where the paper's code keeps their KV. With the
    selection ``full`` it is the paper's method; any other narrows its attention too.
    """

    uses_view: ClassVar[bool] = True
    needs_early_exit: ClassVar[bool] = True

    exit_layer: int = 8

    def __post_init__(self) -> None:
        if self.exit_layer < 1:
            raise ValueError(f"exit_layer={self.exit_layer}: must be at least 1")

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        view = KVView("glimpse", exit_layer=self.exit_layer)
        return draft_through(view, runner, sequences, caps, propose, keep_drafting)
