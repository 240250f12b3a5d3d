"""What followed the last few tokens when they last occurred."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakKeyDictionary

from glimpse.drafters import Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.lookup import MAX_SIZE, MIN_SIZE, Lookup
from glimpse.types import Draft, DraftSignal, Runner, Sequence

CERTAIN = DraftSignal(entropy=0.0, top_prob=1.0, margin=float("inf"), token_prob=1.0)
"""A copied token has no distribution: it counts as drawn from a law of one token."""


@drafters.register
@dataclass
class Ngram(Drafter):
    """Prompt lookup (Saxena 2023; Transformers' ``prompt_lookup_num_tokens``): copy what followed
    the latest earlier occurrence of the last ``max_size`` tokens, or of fewer, down to
    ``min_size``.
    """

    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    min_size: int = MIN_SIZE
    max_size: int = MAX_SIZE

    def __post_init__(self) -> None:
        if self.min_size < 1:
            raise ValueError(f"min_size={self.min_size}: must be at least 1")
        if self.max_size < self.min_size:
            raise ValueError(f"max_size={self.max_size}: must be at least min_size={self.min_size}")
        self._lookups: WeakKeyDictionary[Sequence, Lookup] = WeakKeyDictionary()

    def draft(
        self,
        runner: Runner,  # noqa: ARG002
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,  # noqa: ARG002
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        return [
            self._copy(sequence, cap, keep_drafting)
            for sequence, cap in zip(sequences, caps, strict=True)
        ]

    def _copy(self, sequence: Sequence, cap: int, keep_drafting: KeepDrafting) -> Draft:
        if sequence not in self._lookups:
            self._lookups[sequence] = Lookup(self.min_size, self.max_size)
        draft = Draft()
        for token_id in self._lookups[sequence].follow(sequence.token_ids, (), cap):
            draft.token_ids.append(token_id)
            draft.signals.append(CERTAIN)
            if not keep_drafting(sequence, draft):
                break
        return draft
