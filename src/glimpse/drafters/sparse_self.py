"""The target drafts for itself through the glimpse."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from glimpse.drafters import Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.guesses import Guesses
from glimpse.sampling import signal
from glimpse.types import GLIMPSE, Draft, KVView, RaggedBatch, Runner, Segment, Sequence


@drafters.register
@dataclass
class SparseSelf(Drafter):
    """Self-speculation over a sparse KV view (SparseSpec-L, "Sparse Attention Drafting").

    A draft step reads all weights for one token. With ``lookup`` above 0 it reads them for up to so
    many more, guessed by prompt lookup: each guess that the step itself confirms is a draft that
    needs no step of its own. The drafts are the same with or without (a guess is only ever compared
    to what is drafted), and so is their law. ``lookup=0`` is the paper's form.
    """

    uses_view: ClassVar[bool] = True
    needs_early_exit: ClassVar[bool] = False

    lookup: int = 3

    def __post_init__(self) -> None:
        if self.lookup < 0:
            raise ValueError(f"lookup={self.lookup}: must be at least 0")
        self._guesses: WeakKeyDictionary[Sequence, Guesses] = WeakKeyDictionary()

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        for sequence in sequences:
            if sequence not in self._guesses:
                self._guesses[sequence] = Guesses(self.lookup)
        guesses = [self._guesses[sequence] for sequence in sequences]
        return draft_through(GLIMPSE, runner, sequences, caps, propose, keep_drafting, guesses)


@dataclass
class _Writer:
    """One sequence of the batch while it drafts."""

    sequence: Sequence
    cap: int
    guesses: Guesses
    draft: Draft

    def next_tokens(self) -> list[int]:
        """What the next pass reads: the last token, and guesses of those that follow it."""
        sequence, draft = self.sequence, self.draft
        last = draft.token_ids[-1] if draft.token_ids else sequence.token_ids[-1]
        room = self.cap - len(draft) - 1
        return [last, *self.guesses.guess(sequence.token_ids, draft.token_ids, room)]

    def write(
        self,
        guessed: list[int],
        rows: list[Tensor],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> bool:
        """Draft from each row, up to the first token that was not guessed; whether to go on."""
        self.draft.num_passes += 1
        for row, guess in zip_longest(rows, guessed):
            token_id, log_probs = propose(self.sequence, self.draft, row)
            self.draft.signals.append(signal(row, token_id))
            self.draft.token_ids.append(token_id)
            if log_probs is not None:
                self.draft.log_probs.append(log_probs)
            if guess is not None:
                self.guesses.learn(token_id == guess)
            self.draft.is_next_ready = token_id == guess
            if len(self.draft) >= self.cap or not keep_drafting(self.sequence, self.draft):
                return False
            if token_id != guess:
                break
        return True


def draft_through(
    view: KVView,
    runner: Runner,
    sequences: SequenceOf[Sequence],
    caps: SequenceOf[int],
    propose: Propose,
    keep_drafting: KeepDrafting,
    guesses: SequenceOf[Guesses] | None = None,
) -> list[Draft]:
    """Step by step, each one pass of the target over all that still draft."""
    guesses = guesses or [Guesses(0) for _ in sequences]
    writers = [
        _Writer(sequence, cap, guess, Draft())
        for sequence, cap, guess in zip(sequences, caps, guesses, strict=True)
    ]
    active = writers
    while active:
        read = [writer.next_tokens() for writer in active]
        segments = [
            Segment(writer.sequence.handle, token_ids, len(token_ids))
            for writer, token_ids in zip(active, read, strict=True)
        ]
        rows = iter(runner.forward(RaggedBatch(segments), view).logits)
        still = []
        for writer, (_, *guessed) in zip(active, read, strict=True):
            num_before = len(writer.draft)
            own = [next(rows) for _ in range(1 + len(guessed))]
            if not writer.write(guessed, own, propose, keep_drafting):
                continue
            still.append(writer)
            # What was read beyond the first wrong guess is no part of the draft.
            if len(writer.draft) - num_before < len(own):
                runner.truncate_draft(writer.sequence.handle, len(writer.draft))
        active = still
    return [writer.draft for writer in writers]
