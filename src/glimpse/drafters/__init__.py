"""Who proposes tokens: one drafter per file, named after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.registry import Registry
from glimpse.types import Draft, DraftHead, Runner, Sequence

Proposal = tuple[int, Tensor | None]
"""A token id and, for rejection sampling, the log-probabilities it was sampled from."""
Propose = Callable[[Sequence, Draft, Tensor], Proposal]
"""Chooses the token that follows a draft, given the drafter's logits [vocab_size]."""
KeepDrafting = Callable[[Sequence, Draft], bool]


@dataclass(frozen=True)
class Assets:
    """What some drafters need beside the target; loaded before any of them runs."""

    draft_runner: Runner | None = None
    """A second model whose tokens are the target's."""
    head: DraftHead | None = None
    """Layers trained for the target."""


class Drafter(Protocol):
    """Proposes tokens. It leaves the target's dense KV and statistics as it found them."""

    uses_view: ClassVar[bool]
    """Whether it reads the glimpse, so that a selection means something to it."""
    needs_early_exit: ClassVar[bool]
    """Whether the runner must be able to stop after some of the layers."""

    @property
    def needs_draft_model(self) -> bool:
        """Whether it needs ``Assets.draft_runner``."""
        return False

    @property
    def needs_head(self) -> str | None:
        """The kind of ``Assets.head`` that it needs."""
        return None

    def hidden_layers(self, config: ModelConfig) -> tuple[int, ...]:  # noqa: ARG002
        """Layers of the target whose inputs it wants to be shown."""
        return ()

    def observe(self, sequence: Sequence, hidden: Mapping[int, Tensor]) -> None:
        """The inputs of ``hidden_layers`` [num_committed, hidden_size] from which the tokens that a
        round has added to a sequence came.
        """

    def attach(self, assets: Assets) -> None:
        """Take what it needs, once, before the first draft."""

    def forget(self, sequence: Sequence) -> None:
        """Free what it keeps of a sequence that has ended."""

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        """At most ``caps[i]`` (at least 1) tokens for each sequence, fewer if told to stop."""


drafters: Registry[Drafter] = Registry("drafter")
drafters.discover(__name__)
