"""Drafting with KV of the drafter's own: a second text, on any runner, that follows a sequence."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from glimpse import prefill
from glimpse.drafters import KeepDrafting, Propose
from glimpse.sampling import signal
from glimpse.types import Draft, RaggedBatch, Runner, Segment, Sequence

logger = logging.getLogger(__name__)

Shorten = Callable[[Sequence], SequenceOf[int]]
"""What a drafter reads in the place of a sequence's prompt."""


class Companion:
    """KV that follows one sequence: ``prompt_ids`` in the place of its prompt, then its output.

    Drafted tokens are read too; those that the sequence did not keep are taken back when the next
    draft begins, for which only they are looked at.
    """

    def __init__(self, runner: Runner, sequence: Sequence, prompt_ids: SequenceOf[int]) -> None:
        self.runner = runner
        self._prompt_ids = prompt_ids
        self._shift = len(prompt_ids) - sequence.num_prompt_tokens
        self._handle: int | None = None
        self._num_settled = 0
        """Leading tokens of its text, read already, that are the sequence's for good."""
        self._drafted: list[int] = []
        """What it was given to read beyond them."""
        self._is_told = False

    def close(self) -> None:
        if self._handle is not None:
            self.runner.close(self._handle)
            self._handle = None

    def room(self, token_ids: SequenceOf[int]) -> int:
        """How many tokens it can draft after these: 0 beyond its context or vocabulary, of which a
        line tells once.
        """
        config = self.runner.config
        num_tokens = len(token_ids) + self._shift
        room = max(0, config.max_seq_len + 1 - num_tokens)
        foreign = max(self._unsettled(token_ids), default=0)
        if room == 0:
            self._tell(
                f"{num_tokens} tokens are more than the drafter's context of {config.max_seq_len}"
            )
        elif foreign >= config.vocab_size:
            room = 0
            self._tell(f"the drafter's vocabulary of {config.vocab_size} has no token {foreign}")
        return room

    def rewind(self, token_ids: SequenceOf[int]) -> None:
        """Take back the drafted tokens in which ``token_ids``, a sequence's and perhaps a draft,
        differ, and the last of them, which the next pass reads.
        """
        begin = self._num_settled - self._shift
        pairs = zip(self._drafted, token_ids[begin:-1], strict=False)
        num_kept = next(
            (i for i, (a, b) in enumerate(pairs) if a != b),
            min(len(self._drafted), max(0, len(token_ids) - 1 - begin)),
        )
        del self._drafted[num_kept:]
        if self._handle is not None:
            # Where a pass was interrupted there is less than it was given.
            end = min(self.runner.length(self._handle), self._num_settled + num_kept)
            self.runner.truncate(self._handle, end)

    def settle(self, token_ids: SequenceOf[int]) -> None:
        """``rewind``, and hold what is left for good: the sequence has committed it."""
        self.rewind(token_ids)
        self._num_settled = 0 if self._handle is None else self.runner.length(self._handle)
        self._drafted.clear()

    def segment(self, sequence: Sequence, draft_ids: SequenceOf[int]) -> Segment:
        """What the next pass reads so that its logits follow a sequence and its draft."""
        handle = self._catch_up(sequence)
        unread = self._unread(handle, sequence.token_ids, draft_ids)
        start = self.runner.length(handle) - self._num_settled
        self._drafted[start:] = unread
        return Segment(handle, unread)

    def _tell(self, reason: str) -> None:
        if not self._is_told:
            logger.warning("drafting stops, the text goes on without: %s", reason)
        self._is_told = True

    def _unsettled(self, token_ids: SequenceOf[int]) -> SequenceOf[int]:
        if self._num_settled < len(self._prompt_ids):
            begin = len(self._prompt_ids) - self._shift
            return [*self._prompt_ids[self._num_settled :], *token_ids[begin:]]
        return token_ids[self._num_settled - self._shift :]

    def _unread(
        self, handle: int, token_ids: SequenceOf[int], draft_ids: SequenceOf[int]
    ) -> list[int]:
        num_read = self.runner.length(handle) - self._shift - len(token_ids)
        if num_read >= 0:
            return list(draft_ids[num_read:])
        return [*token_ids[num_read:], *draft_ids]

    def _catch_up(self, sequence: Sequence) -> int:
        """Read all of a sequence that a single pass should not: its prompt, and long stretches that
        were not drafted.
        """
        runner = self.runner
        if self._handle is None:
            most = len(self._prompt_ids) + sequence.params.max_tokens
            self._handle = runner.open(min(runner.config.max_seq_len, most))
        num_tokens = len(sequence.token_ids) + self._shift
        if num_tokens - runner.length(self._handle) > prefill.CHUNK_SIZE or (
            runner.length(self._handle) < len(self._prompt_ids)
        ):
            begin = sequence.num_prompt_tokens
            text = [*self._prompt_ids, *sequence.token_ids[begin:]]
            prefill.fill(runner, self._handle, text[:-1])
            self._num_settled = len(text) - 1
        return self._handle


@dataclass
class Companions:
    """The companions of all sequences that draft, and the loop in which they do."""

    runner: Runner
    shorten: Shorten
    _of: dict[Sequence, Companion] = field(default_factory=dict)

    def of(self, sequence: Sequence) -> Companion:
        if sequence not in self._of:
            self._of[sequence] = Companion(self.runner, sequence, self.shorten(sequence))
        return self._of[sequence]

    def forget(self, sequence: Sequence) -> None:
        companion = self._of.pop(sequence, None)
        if companion is not None:
            companion.close()

    def draft(
        self,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        vocab_size: int,
        propose: Propose,
        keep_drafting: KeepDrafting,
        outer: SequenceOf[SequenceOf[int]] | None = None,
    ) -> list[Draft]:
        """Step by step, each one pass over all that still draft. ``vocab_size`` is the target's;
        ``outer`` is what another level has drafted of each text already.
        """
        drafts = [Draft() for _ in sequences]
        before = [()] * len(sequences) if outer is None else outer
        active = [
            writer
            for writer in map(_Writer, map(self.of, sequences), sequences, before, caps, drafts)
            if writer.begin(is_final=outer is None)
        ]
        while active:
            rows = self.runner.forward(RaggedBatch([w.segment() for w in active])).logits
            active = [
                writer
                for row, writer in zip(rows, active, strict=True)
                if writer.write(fit(row, vocab_size), propose, keep_drafting)
            ]
        return drafts


@dataclass
class _Writer:
    """One sequence of the batch while it drafts."""

    companion: Companion
    sequence: Sequence
    outer: SequenceOf[int]
    cap: int
    draft: Draft

    def begin(self, *, is_final: bool) -> bool:
        """Bring the companion to where the draft begins; whether there is one to write."""
        self.text = self.sequence.extended(self.outer) if self.outer else self.sequence
        if is_final:
            self.companion.settle(self.text.token_ids)
        else:
            self.companion.rewind(self.text.token_ids)
        self.cap = min(self.cap, self.companion.room(self.text.token_ids))
        return self.cap > 0

    def segment(self) -> Segment:
        return self.companion.segment(self.sequence, [*self.outer, *self.draft.token_ids])

    def write(self, row: Tensor, propose: Propose, keep_drafting: KeepDrafting) -> bool:
        """Draft from a row; whether to go on."""
        add_token(self.text, self.draft, row, propose)
        return len(self.draft) < self.cap and keep_drafting(self.text, self.draft)


def add_token(sequence: Sequence, draft: Draft, row: Tensor, propose: Propose) -> None:
    """Let the acceptance rule choose from a row of logits what follows a draft."""
    token_id, log_probs = propose(sequence, draft, row)
    draft.signals.append(signal(row, token_id))
    draft.token_ids.append(token_id)
    if log_probs is not None:
        draft.log_probs.append(log_probs)


def fit(row: Tensor, vocab_size: int) -> Tensor:
    """Logits [vocab_size] from those of a model that is padded to another size."""
    missing = vocab_size - len(row)
    return row[:vocab_size] if missing <= 0 else F.pad(row, (0, missing), value=-math.inf)
