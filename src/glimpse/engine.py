"""The five verbs: plan, draft, verify, accept, commit. Everything the product does is this loop."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

from torch import Tensor

from glimpse import methods, stopping
from glimpse.acceptance import Acceptance, acceptances, default_acceptance
from glimpse.config import Method, SamplingParams
from glimpse.costs import CostModel
from glimpse.methods import Plugins
from glimpse.sampling import token_logprobs
from glimpse.types import (
    Draft,
    Outcome,
    Progress,
    RaggedBatch,
    Runner,
    Segment,
    Sequence,
    Statistics,
)

PREFILL_CHUNK = 512
"""Prompt tokens per prefill pass; chunk edges lie at absolute multiples of it."""


class Engine:
    """Drives a runner: opens sequences, and moves any set of them on by one round at a time.

    Between rounds the runner holds KV for all tokens of a sequence but the last. An exception inside
    a round, Ctrl-C included, leaves the KV and the tokens as they were before it.
    """

    def __init__(
        self,
        runner: Runner,
        decode: Callable[[SequenceOf[int]], str],
        costs: CostModel | None = None,
    ) -> None:
        self.runner = runner
        self.costs = costs or CostModel()
        self._decode = decode
        self._plugins: dict[Method, Plugins] = {}
        self._rules: dict[str, Acceptance] = {}
        self._seconds: Counter[str] = Counter()

    def round(self, sequences: SequenceOf[Sequence]) -> list[Outcome]:
        """Move every sequence on by one round: at least one token each."""
        started = time.perf_counter()
        self._seconds.clear()
        try:
            caps = self._plan(sequences)
            drafts = self._draft(sequences, caps)
            logits = self._verify(sequences, drafts)
            accepted = self._accept(sequences, drafts, logits)
        except BaseException:
            for sequence in sequences:
                self.runner.truncate(sequence.handle, len(sequence.token_ids) - 1)
            raise
        outcomes = self._commit(sequences, drafts, logits, accepted)
        self._learn(outcomes, time.perf_counter() - started)
        return outcomes

    # --------------------------------------------------------------------------------- the verbs

    def _plan(self, sequences: SequenceOf[Sequence]) -> list[int]:
        """A cap on the draft length of each sequence, no longer than what it may still emit."""
        caps = [0] * len(sequences)
        with self._timed("plan"):
            for plugins, members in self._by_method(sequences):
                # The first token comes from a plain round: it should not wait for a draft.
                drafting = [i for i in members if sequences[i].num_output_tokens > 0]
                if plugins.drafter is None or not drafting:
                    continue
                planned = plugins.controller.plan([sequences[i] for i in drafting], self.costs)
                for i, cap in zip(drafting, planned, strict=True):
                    caps[i] = min(cap, self._room(sequences[i]) - 1)
        return caps

    def _draft(self, sequences: SequenceOf[Sequence], caps: list[int]) -> list[Draft]:
        """Refresh the glimpse of every sequence that drafts, then let its drafter propose."""
        drafts = [Draft() for _ in sequences]
        for plugins, members in self._by_method(sequences):
            drafting = [i for i in members if caps[i] > 0]
            if plugins.drafter is None or not drafting:
                continue
            chosen = [sequences[i] for i in drafting]
            with self._timed("refresh"):
                if plugins.selection is not None:
                    for sequence in chosen:
                        spec = plugins.selection.select(self.runner, sequence)
                        self.runner.refresh(sequence.handle, spec)
            with self._timed("draft"):
                proposed = plugins.drafter.draft(
                    self.runner,
                    chosen,
                    [caps[i] for i in drafting],
                    lambda sequence, draft, row: self._rule(sequence).propose(sequence, draft, row),
                    plugins.controller.keep_drafting,
                )
            for i, draft in zip(drafting, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _verify(self, sequences: SequenceOf[Sequence], drafts: list[Draft]) -> list[Tensor]:
        """One dense pass over the last token and the draft of every sequence; logits of all rows."""
        batch = RaggedBatch(
            [
                Segment(
                    sequence.handle,
                    [sequence.token_ids[-1], *draft.token_ids],
                    num_logits=len(draft) + 1,
                    # A plain round pays nothing for statistics: queries are kept, and scored once
                    # when drafting resumes.
                    is_observed=len(draft) > 0,
                )
                for sequence, draft in zip(sequences, drafts, strict=True)
            ]
        )
        with self._timed("verify"):
            logits = self.runner.forward(batch).logits
        edges = batch.cu_logits
        return [logits[start:end] for start, end in zip(edges, edges[1:], strict=False)]

    def _accept(
        self, sequences: SequenceOf[Sequence], drafts: list[Draft], logits: list[Tensor]
    ) -> list[list[int]]:
        """The longest valid prefix of each draft and one more token."""
        with self._timed("accept"):
            return [
                self._rule(sequence).accept(sequence, draft, rows)
                for sequence, draft, rows in zip(sequences, drafts, logits, strict=True)
            ]

    def _commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: list[Draft],
        logits: list[Tensor],
        accepted: list[list[int]],
    ) -> list[Outcome]:
        """Cut at a stop, append, and drop from the KV what was not kept."""
        outcomes = []
        with self._timed("commit"):
            for sequence, draft, rows, tokens in zip(
                sequences, drafts, logits, accepted, strict=True
            ):
                kept = stopping.cut(sequence, tokens, self._decode, self.runner.config.max_seq_len)
                if sequence.params.logprobs is not None:
                    sequence.logprobs += [
                        token_logprobs(row, token, sequence.params.logprobs)
                        for row, token in zip(rows, kept, strict=False)
                    ]
                sequence.token_ids += kept
                self.runner.truncate(sequence.handle, len(sequence.token_ids) - 1)
                outcomes.append(Outcome(sequence, draft, len(tokens) - 1, len(kept)))
        return outcomes

    # ------------------------------------------------------------------------------ sequences

    def open(
        self,
        prompt_ids: SequenceOf[int],
        params: SamplingParams,
        method: Method,
        *,
        seed: int = 0,
        choice: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
        handle: int | None = None,
        progress: Progress | None = None,
    ) -> Sequence:
        """Read a prompt and return its sequence, ready for rounds.

        ``handle`` is KV that already holds a beginning of this prompt (a fork, or that of an earlier
        prompt cut back): only the rest is read. Raises ValueError for an empty prompt, one beyond
        the context, or an acceptance rule that does not fit ``params``.
        """
        limit = self.runner.config.max_seq_len
        if not prompt_ids:
            raise ValueError("the prompt is empty: it must have at least one token")
        if len(prompt_ids) >= limit:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens: {len(prompt_ids) - limit + 1} more than "
                f"the model's context of {limit} leaves room for"
            )
        started = time.perf_counter()
        if handle is None:
            capacity = min(limit, len(prompt_ids) + params.max_tokens)
            handle = self.runner.open(capacity, self._live(method).statistics)
        acceptance = default_acceptance(params) if method.acceptance == "auto" else method.acceptance
        sequence = Sequence(
            handle, list(prompt_ids), len(prompt_ids), params, method, acceptance, seed, choice,
            eos_token_ids,
        )  # fmt: skip
        try:
            self._prefill(sequence, progress)
        except BaseException:
            self.runner.close(handle)
            raise
        sequence.stats.runner = self.runner.name
        sequence.stats.method = method.name
        sequence.stats.prompt_tokens = len(prompt_ids)
        sequence.stats.prefill_s = time.perf_counter() - started
        return sequence

    def statistics(self, method: Method) -> Statistics:
        """What a runner must record for a method."""
        return self._live(method).statistics

    def close(self, sequence: Sequence) -> None:
        """Free a sequence's KV."""
        self.runner.close(sequence.handle)

    def _prefill(self, sequence: Sequence, progress: Progress | None) -> None:
        """Fill the KV with all of the prompt but its last token, which the first round reads."""
        end = sequence.num_prompt_tokens - 1
        start = self.runner.length(sequence.handle)
        while start < end:
            stop = min(end, (start // PREFILL_CHUNK + 1) * PREFILL_CHUNK)
            chunk = Segment(sequence.handle, sequence.token_ids[start:stop], num_logits=0)
            self.runner.forward(RaggedBatch([chunk]))
            start = stop
            if progress is not None:
                progress(stop, end)

    # ---------------------------------------------------------------------------------- helpers

    def _room(self, sequence: Sequence) -> int:
        """Tokens the sequence may still emit."""
        context = self.runner.config.max_seq_len - len(sequence.token_ids)
        return min(sequence.params.max_tokens - sequence.num_output_tokens, context)

    def _learn(self, outcomes: list[Outcome], seconds: float) -> None:
        """Let costs, controllers and statistics take note of the round."""
        self._seconds["total"] = seconds
        ...

    def _live(self, method: Method) -> Plugins:
        if method not in self._plugins:
            self._plugins[method] = methods.build(method)
        return self._plugins[method]

    def _rule(self, sequence: Sequence) -> Acceptance:
        name = sequence.acceptance
        if name not in self._rules:
            self._rules[name] = acceptances.build(name)
        return self._rules[name]

    def _by_method(self, sequences: SequenceOf[Sequence]) -> Iterator[tuple[Plugins, list[int]]]:
        """Indices of the sequences that share a method, with its plugins."""
        groups: defaultdict[Method, list[int]] = defaultdict(list)
        for i, sequence in enumerate(sequences):
            groups[sequence.method].append(i)
        for method, members in groups.items():
            yield self._live(method), members

    @contextmanager
    def _timed(self, verb: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[verb] += time.perf_counter() - started
