"""The paper's controller: draft as long as that is expected to pay, and not where it cannot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Literal

from glimpse.controllers import controllers
from glimpse.controllers.calibration import Calibration, OnlineCalibration, PaperCalibration
from glimpse.costs import CostModel
from glimpse.efficiency import best_length
from glimpse.types import Draft, Outcome, Sequence

FIRST_CAP = 2
"""Draft length as long as no draft step's cost is known."""
SURE = 3
"""Draft steps' costs observed before drafting is given up for what they cost."""
LOOKAHEAD = 3
"""Further tokens looked at when one more alone does not pay (a verify pass may cost in steps)."""
PASS_MEMORY = 0.9
"""What the share of drafted tokens that need a pass keeps with each round."""
REST = 3
"""Plain rounds after it was found that drafting does not pay, before that is asked again."""
MAX_CREDIT = 2.0
"""Plain rounds' worth of probing that can be saved up, or lost before drafting is given up."""


@controllers.register
@dataclass
class Efficiency:
    """Draft length by expected step-wise efficiency (SparseSpec-L, Eq. 6 to 8).

    ``calibration=paper`` follows the equations to the letter: after each token, Eq. 8 is evaluated
    with the probabilities of those drafted and the recent mean for those to come, and drafting goes
    on while k* is beyond. ``calibration=online`` takes probabilities from what was observed, and
    goes on while the chance of reaching a token, times the seconds a token takes in the long run,
    is above what it adds to the round: the stopping rule that maximises tokens per second.

    Where no length beats plain decoding nothing is drafted, but for probes: they may lose at most
    ``probe_share`` of the time, and what they win pays for more of them. ``hysteresis`` is the gain
    or loss in speed at which drafting is taken up or given up. All costs are the cost model's, so a
    pinned one makes every decision reproducible.
    """

    calibration: Literal["online", "paper"] = "online"
    max_k: int = 16
    beta: float = 0.9
    """Eq. 6's smoothing; only ``calibration=paper`` has it."""
    probe_share: float = 0.01
    hysteresis: float = 0.02

    def __post_init__(self) -> None:
        if self.max_k < 1:
            raise ValueError(f"max_k={self.max_k}: must be at least 1")
        for name in ("beta", "probe_share", "hysteresis"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be from 0 to below 1")
        self._calibration: Calibration = (
            OnlineCalibration(self.max_k)
            if self.calibration == "online"
            else PaperCalibration(self.max_k, self.beta)
        )
        self._round: _Round | None = None
        self._is_on = False
        self._loss = 0.0
        """Expected seconds lost since drafting was thought to pay."""
        self._credit = 0.0
        self._is_encouraged = False
        """The latest round was a probe, and all that it drafted was accepted."""
        self._resting: dict[int, int] = {}
        """Plain rounds still to come of each handle before the next look."""
        self._pass_share = 1.0
        """Of the drafted tokens after a draft's first: how many needed a pass of their own."""
        self._plain_s = 0.0
        """Of a plain round, when last looked at."""

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:
        if self._rests(sequences):
            return [0] * len(sequences)
        profiles = [self._calibration.profile(sequence) for sequence in sequences]
        self._round = this = _Round(sequences, profiles, costs, self._pass_share)
        self._plain_s = this.round_costs[0]
        self._switch(this)
        if self._is_on:
            cap = self.max_k if costs.num_drafts(this.batch) else min(FIRST_CAP, self.max_k)
            caps = [cap if this.pays(profile, self.hysteresis) else 0 for profile in profiles]
        else:
            is_unsure = costs.num_drafts(this.batch) < SURE and this.promise > 1 + self.hysteresis
            is_probing = is_unsure or self._affords(this) or self._is_encouraged
            caps = [this.best_k * is_probing] * this.batch
        this.num_drafting[0] = sum(cap > 0 for cap in caps)
        self._resting = {} if any(caps) else dict.fromkeys(this.profiles, REST)
        return caps

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:
        this = self._round
        assert this is not None, "plan opens a round"
        profile, known = this.profiles[sequence.handle], this.known[sequence.handle]
        known += [
            self._calibration.probability(sequence, signal)
            for signal in draft.signals[len(known) :]
        ]
        if self.calibration == "paper":
            probabilities = known + profile[len(known) :]
            keep = best_length(probabilities, this.draft_cost, this.round_costs)[0] > len(draft)
        else:
            is_ready = draft.is_next_ready
            keep = math.prod(known) > this.needed(profile, len(draft), is_ready=is_ready)
        this.num_drafting[len(draft)] += keep
        return keep

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:  # noqa: ARG002
        this, self._round = self._round, None
        if this is None:
            if self._resting:
                self._save(self.probe_share * self._plain_s)
            return
        planned = [outcome for outcome in outcomes if outcome.sequence.handle in this.profiles]
        if not self._is_on and planned:
            self._save(self._saved(this, planned))
        # Having paid for resuming, a probe goes on for as long as it does well.
        self._is_encouraged = this.could_pay and all(
            0 < len(outcome.draft) == outcome.num_accepted for outcome in planned
        )
        for outcome in planned:
            self._calibration.learn(outcome)
            self._learn_passes(outcome.draft)

    def _learn_passes(self, draft: Draft) -> None:
        if draft.num_passes and len(draft) > 1:
            share = (draft.num_passes - 1) / (len(draft) - 1)
            self._pass_share = PASS_MEMORY * self._pass_share + (1 - PASS_MEMORY) * share

    def _switch(self, this: _Round) -> None:
        """Take up drafting where it pays; give it up once it has lost what resuming it would cost.

        The second is the rule of a renter of skis, who buys when the rent paid equals the price:
        whatever comes, it costs at most twice what it would have cost to know.
        """
        if not self._is_on:
            self._is_on, self._loss = this.gain > 1 + self.hysteresis, 0.0
            return
        self._loss = max(0.0, self._loss + (1 - this.gain) * this.seconds(this.best_k))
        limit = min(MAX_CREDIT * self._plain_s, this.resuming)
        self._is_on = self._loss <= max(limit, self.hysteresis * self._plain_s)
        if not self._is_on:
            self._credit = 0.0

    def _rests(self, sequences: SequenceOf[Sequence]) -> bool:
        """Whether all of these were plain in the latest rounds, and nothing is to be asked yet."""
        self._resting = {s.handle: self._resting.get(s.handle, 0) - 1 for s in sequences}
        return min(self._resting.values()) >= 0

    def _save(self, seconds: float) -> None:
        """Add to the credit for probes, up to its limit in plain rounds."""
        self._credit = min(MAX_CREDIT * self._plain_s, self._credit + seconds)

    def _affords(self, this: _Round) -> bool:
        """Whether there is credit for a probe. Full credit always buys one: what a probe is thought
        to cost may be wrong, and only a probe can tell.
        """
        plain = this.round_costs[0]
        return self._credit >= min(
            max(this.loss_of_probe, self.hysteresis * plain), MAX_CREDIT * plain
        )

    def _saved(self, this: _Round, outcomes: list[Outcome]) -> float:
        """Seconds a round adds to the credit for probes: a share of a plain round, or what a probe
        saved over plain rounds for as many tokens (negative: what it lost).
        """
        k = max(len(outcome.draft) for outcome in outcomes)
        if k == 0:
            return self.probe_share * this.round_costs[0]
        num_tokens = sum(outcome.num_committed for outcome in outcomes) / len(outcomes)
        resuming = 0.0 if self._is_encouraged else this.resuming
        return num_tokens * this.round_costs[0] - this.seconds(k) - resuming


class _Round:
    """What a round would cost, and what is known of it so far."""

    def __init__(
        self,
        sequences: SequenceOf[Sequence],
        profiles: list[list[float]],
        costs: CostModel,
        pass_share: float,
    ) -> None:
        self.batch = batch = len(sequences)
        self.profiles = dict(zip((s.handle for s in sequences), profiles, strict=True))
        self.known: dict[int, list[float]] = {sequence.handle: [] for sequence in sequences}
        """Acceptance probabilities of the tokens drafted."""
        self.num_drafting = Counter({0: batch})
        """How many sequences draft a token after so many drafted ones."""
        self._costs = costs
        mean = profiles[0] if batch == 1 else [sum(p) / batch for p in zip(*profiles, strict=True)]
        lengths = range(len(mean) + 1)
        context = sum(len(sequence.token_ids) for sequence in sequences)
        self._pass_share = pass_share
        self._pass_cost = costs.draft(batch)
        self.draft_cost = pass_share * self._pass_cost
        """Seconds of one more token, on average; a draft's first always needs a pass."""
        first = self._pass_cost - self.draft_cost
        overheads = (costs.overhead("plain"), costs.overhead("drafting") + first)
        self.round_costs = [
            costs.verify((k + 1) * batch, batch, context) + overheads[k > 0] for k in lengths
        ]
        """Seconds of a round that drafts k tokens for each sequence, without its draft steps."""
        plain = self.round_costs[0]
        self.best_k, rate = best_length(mean, self.draft_cost, self.round_costs, lengths[1:])
        """Of the lengths above 0."""
        self.gain = rate * plain
        """Speed at the best length above 0 over that of plain decoding."""
        self.seconds_per_token = min(plain, 1.0 / rate)
        """In the long run, for each sequence of the batch."""
        usual = min(self.draft_cost, costs.draft_share * plain)
        self.promise = best_length(mean, usual, self.round_costs, lengths[1:])[1] * plain
        """The gain if a draft step turned out to cost no more than was expected."""
        self.resuming = max(0.0, costs.overhead("resuming") - costs.overhead("drafting"))
        """Seconds that a round which drafts after a plain one takes longer than another."""
        self.loss_of_probe = (1 - self.gain) * self.seconds(self.best_k) + self.resuming
        """Expected seconds that one round with ``best_k`` drafts takes beyond plain decoding of as
        many tokens."""

    @property
    def could_pay(self) -> bool:
        """Whether a round with ``best_k`` drafts beats plain decoding if all are accepted."""
        return self.seconds(self.best_k) < (self.best_k + 1) * self.round_costs[0]

    def seconds(self, k: int) -> float:
        """Of a round with k drafts, where the one before it drafted too."""
        return k * self.draft_cost + self.round_costs[k]

    def needed(self, profile: list[float], k: int, *, is_ready: bool = False) -> float:
        """The chance of k drafts being accepted above which drafting further pays; where the next
        token ``is_ready`` it needs no pass.
        """
        pass_cost = self._pass_cost
        num_drafting = self.num_drafting[max(0, k - 1)]
        if 0 < num_drafting < self.batch:
            # A step for fewer sequences: each carries a larger share of it.
            pass_cost = self._costs.draft(num_drafting) * self.batch / num_drafting
        later = self._pass_share * pass_cost
        # What a draft's very first token costs beyond that is in the costs of the round.
        first = later if k == 0 else 0.0 if is_ready else pass_cost
        reach, tokens, least = 1.0, 0.0, math.inf
        for n in range(k, min(k + LOOKAHEAD, len(profile))):
            reach *= profile[n]
            tokens += reach
            added = first + (n - k) * later + self.round_costs[n + 1] - self.round_costs[k]
            least = min(least, added / tokens)
        return least / self.seconds_per_token

    def pays(self, profile: list[float], hysteresis: float) -> bool:
        """Whether one sequence of a batch that drafts should draft at all."""
        return self.batch == 1 or self.needed(profile, 0) < 1 + hysteresis
