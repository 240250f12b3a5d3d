"""A smaller model drafts for the target."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar

from glimpse.drafters import Assets, Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.companion import Companions
from glimpse.types import Draft, Runner, Sequence


@drafters.register
@dataclass
class Auxiliary(Drafter):
    """Speculative decoding (Leviathan et al. 2022, arXiv 2211.17192; Chen et al. 2023, arXiv
    2302.01318): a smaller model with the same tokens drafts, over KV of its own.

    It reads the prompt when a text first drafts. Where a text outgrows its context it drafts no
    more.
    """

    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    @property
    def needs_draft_model(self) -> bool:
        return True

    def attach(self, assets: Assets) -> None:
        assert assets.draft_runner is not None  # the engine has asked for it
        self._companions = Companions(assets.draft_runner, prompt_of)

    def forget(self, sequence: Sequence) -> None:
        self._companions.forget(sequence)

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        vocab_size = runner.config.vocab_size
        return self._companions.draft(sequences, caps, vocab_size, propose, keep_drafting)


def prompt_of(sequence: Sequence) -> list[int]:
    return sequence.token_ids[: sequence.num_prompt_tokens]
