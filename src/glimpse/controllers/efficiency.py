"""The paper's controller: draft while that is expected to pay, and not at all where it cannot."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Literal

from glimpse.controllers import controllers
from glimpse.controllers.calibration import Calibration, OnlineCalibration, PaperCalibration
from glimpse.costs import CostModel
from glimpse.efficiency import best_length
from glimpse.types import Draft, Outcome, Sequence

FIRST_CAP = 2
LOOKAHEAD = 3
MODEL_WEIGHT = 4.0
FORGET = 0.9


@controllers.register
@dataclass
class Efficiency:
    """Expected step-wise efficiency (SparseSpec-L, Eq. 6-8)."""

    calibration: Literal["online", "paper"] = "online"
    max_k: int = 16
    beta: float = 0.9
    probe_share: float = 0.01
    hysteresis: float = 0.02

    def __post_init__(self) -> None:
        self._calibration: Calibration = (
            OnlineCalibration(self.max_k)
            if self.calibration == "online"
            else PaperCalibration(self.max_k, self.beta)
        )
        self._is_on = False
        self._credit = 0.0
        self._tokens = self._seconds = 0.0
        self._known: dict[int, list[float]] = {}

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:
        batch = len(sequences)
        self._price(sequences, costs)
        profiles = [self._calibration.profile(sequence) for sequence in sequences]
        self._profile = [sum(column) / batch for column in zip(*profiles, strict=True)]
        self._known = {sequence.handle: [] for sequence in sequences}
        gain = self._gain()
        was_on, self._is_on = self._is_on, gain > 1 + (-1 if self._is_on else 1) * self.hysteresis
        if was_on and not self._is_on:
            self._credit = self._tokens = self._seconds = 0.0
        cap = self.max_k if self._is_on else int(self._credit >= self._loss_of_probe())
        if self._is_on and costs.num_drafts(batch) == 0:
            cap = min(cap, FIRST_CAP)
        caps = [cap] * batch
        self._drafting = [batch]
        return caps

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:
        known = self._probabilities(sequence, draft)
        j = len(draft)
        if self.calibration == "paper":
            probabilities = known + self._profile[j:]
            return best_length(probabilities, self._draft_cost, self._round_costs)[0] > j
        reach = 1.0
        for p in known: reach *= p
        return reach > self._needed(j)

    def _needed(self, j: int) -> float:
        reach, tokens, best = 1.0, 0.0, float("inf")
        for m in range(j, min(j + LOOKAHEAD, self.max_k)):
            reach *= self._profile[m]
            tokens += reach
            cost = (m - j + 1) * self._draft_cost + self._round_costs[m + 1] - self._round_costs[j]
            best = min(best, cost / tokens)
        return best / self._seconds_per_token

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        k = max(len(outcome.draft) for outcome in outcomes)
        if k == 0:
            self._credit += self.probe_share * self._round_costs[0]
            return
        spent = k * self._draft_cost + self._round_costs[k]
        if not self._is_on:
            made = sum(o.num_committed for o in outcomes) / len(outcomes)
            self._credit += made * self._round_costs[0] - spent
            self._credit = min(self._credit, 2 * self._round_costs[0])
        for outcome in outcomes:
            self._calibration.learn(outcome)

    def _price(self, sequences, costs):
        batch = len(sequences)
        context = sum(len(sequence.token_ids) for sequence in sequences)
        self._draft_cost = costs.draft(batch)
        self._round_costs = [costs.verify((k + 1) * batch, batch, context) + costs.overhead(k > 0) for k in range(self.max_k + 1)]

    def _gain(self):
        k, rate = best_length(self._profile, self._draft_cost, self._round_costs, range(1, self.max_k + 1))
        plain = self._round_costs[0]
        self._seconds_per_token = min(plain, 1 / rate)
        return rate * plain

    def _loss_of_probe(self):
        return self._draft_cost + self._round_costs[1] - self._round_costs[0]

    def _probabilities(self, sequence: Sequence, draft: Draft) -> list[float]:
        known = self._known[sequence.handle]
        for i in range(len(known), len(draft)):
            known.append(self._calibration.probability(sequence, i, draft.signals[i]))
        return known
