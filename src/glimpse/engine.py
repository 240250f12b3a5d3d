"""The five verbs: plan, draft, verify, accept, commit. Everything the product does is this loop."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor

from glimpse import methods, prefill, stopping
from glimpse.acceptance import Acceptance, acceptances, resolve_acceptance
from glimpse.config import Method, SamplingParams
from glimpse.controllers import Controller
from glimpse.costs import CostModel
from glimpse.drafters import Assets, KeepDrafting, Proposal
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

SHARE_WITHOUT_PASS = 0.02
"""What drafting a token without the model is taken to cost of a plain pass."""


class Engine:
    """Drives a runner: opens sequences, and moves any set of them on by one round at a time.

    Between rounds the runner holds KV for all tokens of a sequence but the last. An exception
    inside a round, Ctrl-C included, leaves it so.
    """

    def __init__(
        self,
        runner: Runner,
        decode: Callable[[SequenceOf[int]], str],
        costs: CostModel | None = None,
        assets: Assets | None = None,
    ) -> None:
        self.runner = runner
        self.assets = assets or Assets()
        self.costs = costs or CostModel()
        self._decode = decode
        self._plugins: dict[Method, Plugins] = {}
        self._rules: dict[str, Acceptance] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._view_size = 0

    def round(self, sequences: SequenceOf[Sequence]) -> list[Outcome]:
        """Move every sequence on by one round: at least one token each."""
        started = time.perf_counter()
        self._seconds.clear()
        self._view_size = 0
        try:
            caps = self._plan(sequences)
            drafts = self._draft(sequences, caps)
            logits, hidden = self._verify(sequences, drafts)
            accepted = self._accept(sequences, drafts, logits)
            outcomes = self._commit(sequences, drafts, logits, accepted)
        except BaseException:
            for sequence in sequences:
                self.runner.truncate(sequence.handle, len(sequence.token_ids) - 1)
            raise
        self._show(outcomes, hidden)
        self._learn(outcomes, time.perf_counter() - started)
        self._count(outcomes, time.perf_counter() - started)
        for outcome in outcomes:
            if outcome.sequence.is_finished:
                self.forget(outcome.sequence)
        return outcomes

    # --------------------------------------------------------------------------------- the verbs

    def _plan(self, sequences: SequenceOf[Sequence]) -> list[int]:
        """A cap on the draft length of each sequence, no longer than what it may still emit."""
        caps = [0] * len(sequences)
        with self._timed("control"):
            for plugins, members in self._by_method(sequences):
                # The first token comes from a plain round: it should not wait for a draft.
                drafting = [i for i in members if sequences[i].num_output_tokens > 0]
                if plugins.drafter is None or not drafting:
                    continue
                chosen = [sequences[i] for i in drafting]
                if not self.costs.num_drafts(len(chosen)):
                    self.costs.draft_share = self._expected_share(plugins, chosen)
                planned = plugins.controller.plan(chosen, self.costs)
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
                        self._view_size += spec.mean_budget
            with self._timed("draft"):
                proposed = plugins.drafter.draft(
                    self.runner,
                    chosen,
                    [caps[i] for i in drafting],
                    self._propose,
                    self._keep_drafting(plugins.controller),
                )
            for i, draft in zip(drafting, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _verify(
        self, sequences: SequenceOf[Sequence], drafts: list[Draft]
    ) -> tuple[list[Tensor], list[dict[int, Tensor]]]:
        """One dense pass over the last token and the draft of every sequence: logits of all, and
        the hidden states that drafters have asked for.
        """
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
        layers = {layer for sequence in sequences for layer in self._hidden_layers(sequence)}
        with self._timed("verify"):
            output = self.runner.forward(batch, hidden_layers=sorted(layers))
        spans = [slice(*edges) for edges in pairwise(batch.cu_logits)]
        return [output.logits[span] for span in spans], [
            {layer: rows[span] for layer, rows in output.hidden_states.items()} for span in spans
        ]

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
                old = len(sequence.text)
                kept = stopping.cut(sequence, tokens, self._decode, self.runner.config.max_seq_len)
                if sequence.params.logprobs is not None:
                    sequence.logprobs += [
                        token_logprobs(row, token, sequence.params.logprobs)
                        for row, token in zip(rows, kept, strict=False)
                    ]
                sequence.token_ids += kept
                self.runner.truncate(sequence.handle, len(sequence.token_ids) - 1)
                text = sequence.text[old:]
                outcomes.append(Outcome(sequence, draft, len(tokens) - 1, len(kept), text))
        return outcomes

    def _show(self, outcomes: list[Outcome], hidden: list[dict[int, Tensor]]) -> None:
        """Let drafters see the hidden states of what was committed."""
        with self._timed("draft"):
            for outcome, states in zip(outcomes, hidden, strict=True):
                drafter = self._live(outcome.sequence.method).drafter
                if drafter is not None and states:
                    kept = {layer: x[: outcome.num_committed] for layer, x in states.items()}
                    drafter.observe(outcome.sequence, kept)

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
        """Read a prompt and return its sequence; ``handle`` is as for ``prefill.read``."""
        started = time.perf_counter()
        acceptance = resolve_acceptance(method.acceptance, params)
        num_cached = 0 if handle is None else self.runner.length(handle)
        handle = prefill.read(
            self.runner,
            prompt_ids,
            self.statistics(method),
            handle=handle,
            capacity=prefill.capacity(self.runner, prompt_ids, params),
            progress=progress,
        )
        sequence = Sequence(
            handle=handle,
            token_ids=list(prompt_ids),
            num_prompt_tokens=len(prompt_ids),
            params=params,
            method=method,
            acceptance=acceptance,
            seed=seed,
            choice=choice,
            eos_token_ids=eos_token_ids,
        )
        sequence.stats.runner = self.runner.name
        sequence.stats.method = method.name
        sequence.stats.prompt_tokens = len(prompt_ids)
        sequence.stats.cached_tokens = num_cached
        sequence.stats.prefill_s = time.perf_counter() - started
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """Free what drafters keep of a sequence. One that has finished is forgotten already."""
        drafter = self._live(sequence.method).drafter
        if drafter is not None:
            drafter.forget(sequence)

    def statistics(self, method: Method) -> Statistics:
        """What a runner must record for a method."""
        return self._live(method).statistics

    # ---------------------------------------------------------------------------------- helpers

    def _room(self, sequence: Sequence) -> int:
        """Tokens the sequence may still emit."""
        context = self.runner.config.max_seq_len - len(sequence.token_ids)
        return min(sequence.params.max_tokens - sequence.num_output_tokens, context)

    def _expected_share(self, plugins: Plugins, sequences: SequenceOf[Sequence]) -> float:
        """What a draft step may cost of a plain pass, before one was seen."""
        if plugins.selection is None:
            return SHARE_WITHOUT_PASS
        context = max(self.runner.length(sequence.handle) for sequence in sequences)
        view = plugins.selection.num_positions(context)
        return self.runner.pass_bytes(view) / self.runner.pass_bytes(context)

    def _learn(self, outcomes: list[Outcome], seconds: float) -> None:
        """Let the cost model and the controllers take note of the round."""
        num_drafted = sum(len(outcome.draft) for outcome in outcomes)
        passes = [outcome.draft.num_passes or len(outcome.draft) for outcome in outcomes]
        with self._timed("control"):
            if num_drafted:
                num_steps = max(passes)
                # Sequences leave a draft one by one: an average step has this many in it.
                batch = max(1, round(sum(passes) / num_steps))
                step_s = self._seconds["draft"] / num_steps
                self.costs.observe_draft(batch, self._view_size, step_s, num_steps)
            context = sum(self.runner.length(outcome.sequence.handle) for outcome in outcomes)
            self.costs.observe_verify(
                num_drafted + len(outcomes), len(outcomes), context, self._seconds["verify"]
            )
            self.costs.observe_round(num_drafted > 0, seconds)
            # The first round of a sequence was not planned: there is nothing to learn from it.
            planned = [outcome for outcome in outcomes if outcome.sequence.stats.rounds > 0]
            for plugins, members in self._by_method([outcome.sequence for outcome in planned]):
                if plugins.drafter is not None:
                    plugins.controller.learn([planned[i] for i in members], seconds)

    def _count(self, outcomes: list[Outcome], seconds: float) -> None:
        """Enter the round into the statistics of its sequences."""
        for outcome in outcomes:
            stats = outcome.sequence.stats
            stats.rounds += 1
            stats.drafted += len(outcome.draft)
            stats.accepted += outcome.num_accepted
            stats.draft_lengths[len(outcome.draft)] += 1
            stats.generated_tokens += outcome.num_committed
            stats.decode_s += seconds
            for part, elapsed in self._seconds.items():
                stats.seconds[part] = stats.seconds.get(part, 0.0) + elapsed
            if stats.rounds == 1:
                stats.ttft_s = stats.prefill_s + seconds

    def _hidden_layers(self, sequence: Sequence) -> tuple[int, ...]:
        drafter = self._live(sequence.method).drafter
        return () if drafter is None else drafter.hidden_layers(self.runner.config)

    def _propose(self, sequence: Sequence, draft: Draft, logits: Tensor) -> Proposal:
        return self._rule(sequence).propose(sequence, draft, logits)

    def _keep_drafting(self, controller: Controller) -> KeepDrafting:
        """The controller's decision, with its time on its own account."""

        def keep_drafting(sequence: Sequence, draft: Draft) -> bool:
            with self._timed("control"):
                return controller.keep_drafting(sequence, draft)

        return keep_drafting

    def _live(self, method: Method) -> Plugins:
        if method not in self._plugins:
            self._plugins[method] = methods.live(method, self.assets)
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
