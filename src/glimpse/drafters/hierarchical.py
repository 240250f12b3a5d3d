"""A cheap draft is checked through the glimpse, and what comes of it is the draft."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from glimpse.acceptance import Acceptance, acceptances
from glimpse.drafters import Assets, Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.auxiliary import prompt_of
from glimpse.drafters.companion import Companions
from glimpse.drafters.lookup import Lookup
from glimpse.sampling import process_logits, signal
from glimpse.types import GLIMPSE, Draft, RaggedBatch, Runner, Segment, Sequence


@drafters.register
@dataclass
class Hierarchical(Drafter):
    """TriForce (Sun et al. 2024, arXiv 2404.11912): the target over its glimpse checks the drafts
    of an ``inner`` level, prompt lookup or a second model, ``inner_k`` tokens at a time.

    Each level is ordinary speculative sampling: what the glimpse lets through follows the glimpse's
    own law, and that law is what the target checks it against. The paper's inner_k = 1.
    """

    uses_view: ClassVar[bool] = True
    needs_early_exit: ClassVar[bool] = False

    inner: Literal["ngram", "auxiliary"] = "ngram"
    inner_k: int = 1

    def __post_init__(self) -> None:
        if self.inner_k < 1:
            raise ValueError(f"inner_k={self.inner_k}: must be at least 1")
        self._lookups: WeakKeyDictionary[Sequence, Lookup] = WeakKeyDictionary()
        self._companions: Companions | None = None

    @property
    def needs_draft_model(self) -> bool:
        return self.inner == "auxiliary"

    def attach(self, assets: Assets) -> None:
        if self.needs_draft_model and assets.draft_runner is not None:
            self._companions = Companions(assets.draft_runner, prompt_of)

    def forget(self, sequence: Sequence) -> None:
        if self._companions is not None:
            self._companions.forget(sequence)

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        if self._companions is not None:
            for sequence in sequences:
                self._companions.of(sequence).settle(sequence.token_ids)
        writers = [_Writer(*each, Draft()) for each in zip(sequences, caps, strict=True)]
        active = writers
        while active:
            inner = self._draft_inside(runner, active, propose)
            segments = [w.segment(guess) for w, guess in zip(active, inner, strict=True)]
            logits = runner.forward(RaggedBatch(segments), GLIMPSE).logits
            rows = torch.split(logits, [segment.num_logits for segment in segments])
            still = []
            for writer, guess, own in zip(active, inner, rows, strict=True):
                if writer.write(guess, own, keep_drafting):
                    still.append(writer)
                    runner.truncate_draft(writer.sequence.handle, len(writer.draft))
            active = still
        return [writer.draft for writer in writers]

    def _draft_inside(
        self, runner: Runner, active: SequenceOf[_Writer], propose: Propose
    ) -> list[Draft]:
        sequences = [writer.sequence for writer in active]
        before = [writer.draft.token_ids for writer in active]
        rooms = [min(self.inner_k, writer.cap - len(writer.draft) - 1) for writer in active]
        if self._companions is None:
            each = zip(sequences, before, rooms, strict=True)
            return [self._look_up(sequence, ids, room) for sequence, ids, room in each]
        return self._companions.draft(
            sequences, rooms, runner.config.vocab_size, propose, lambda *_: True, before
        )

    def _look_up(self, sequence: Sequence, draft_ids: list[int], room: int) -> Draft:
        if sequence not in self._lookups:
            self._lookups[sequence] = Lookup()
        lookup = self._lookups[sequence]
        return Draft(lookup.follow(sequence.token_ids, draft_ids, room) if room > 0 else [])


@dataclass
class _Writer:
    """One sequence of the batch while it drafts."""

    sequence: Sequence
    cap: int
    draft: Draft

    def __post_init__(self) -> None:
        self._rule: Acceptance = acceptances.build(self.sequence.acceptance)

    def segment(self, inner: Draft) -> Segment:
        """What a pass through the glimpse reads: the last token and the inner draft."""
        last = (self.draft.token_ids or self.sequence.token_ids)[-1]
        return Segment(self.sequence.handle, [last, *inner.token_ids], len(inner) + 1)

    def write(self, inner: Draft, rows: Tensor, keep_drafting: KeepDrafting) -> bool:
        """Draft what the glimpse makes of an inner draft; whether to go on.

        Tokens that come after a stop are dropped whatever they are, so none is favoured.
        """
        self.draft.num_passes += 1
        text = self.sequence.extended(self.draft.token_ids)
        tokens = self._rule.accept(text, inner, rows)
        for i, (token_id, row) in enumerate(zip(tokens, rows, strict=False)):
            self.draft.token_ids.append(token_id)
            self.draft.signals.append(signal(row, token_id))
            if self._rule.needs_law:
                law = process_logits(row[None], text, tokens[:i])[0]
                self.draft.log_probs.append(law)
            if len(self.draft) >= self.cap or not keep_drafting(self.sequence, self.draft):
                return False
        return True
