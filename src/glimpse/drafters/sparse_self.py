"""The target drafts for itself through the glimpse."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar

from glimpse.drafters import Drafter, KeepDrafting, Propose, drafters
from glimpse.sampling import signal
from glimpse.types import GLIMPSE, Draft, RaggedBatch, Runner, Segment, Sequence


@drafters.register
@dataclass
class SparseSelf(Drafter):
    """Self-speculation over a sparse KV view (SparseSpec-L, "Sparse Attention Drafting")."""

    uses_view: ClassVar[bool] = True

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        drafts = [Draft() for _ in sequences]
        active = list(zip(sequences, drafts, caps, strict=True))
        while active:
            batch = RaggedBatch(
                [Segment(seq.handle, [_last(seq, draft)]) for seq, draft, _ in active]
            )
            logits = runner.forward(batch, GLIMPSE).logits
            for (sequence, draft, _), row in zip(active, logits, strict=True):
                token_id, log_probs = propose(sequence, draft, row)
                draft.signals.append(signal(row, token_id))
                draft.token_ids.append(token_id)
                if log_probs is not None:
                    draft.log_probs.append(log_probs)
            active = [
                (sequence, draft, cap)
                for sequence, draft, cap in active
                if len(draft) < cap and keep_drafting(sequence, draft)
            ]
        return drafts


def _last(sequence: Sequence, draft: Draft) -> int:
    return draft.token_ids[-1] if draft.token_ids else sequence.token_ids[-1]
