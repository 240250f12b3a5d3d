"""The paper's controller: draft while the expected efficiency of the round still rises."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

from glimpse.controllers import controllers
from glimpse.controllers.calibration import Calibration, OnlineCalibration, PaperCalibration
from glimpse.costs import CostModel
from glimpse.efficiency import best_length
from glimpse.types import Draft, Outcome, Sequence

FIRST_CAP = 2
W=4.0
EMA=.9


@controllers.register
@dataclass
class Efficiency:
    """..."""

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
        self._reach: dict[int, tuple[int, float]] = {}
        self._E = self._T = 0.0

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:
        batch = len(sequences)
        context = sum(len(sequence.token_ids) for sequence in sequences)
        self._reach.clear()
        self._draft_cost = costs.draft(batch)
        extra = costs.overhead(True)
        self._verify = [
            costs.verify((k + 1) * batch, batch, context) + (extra if k else costs.overhead(False))
            for k in range(self.max_k + 1)
        ]
        self._profile = self._calibration.profile(sequences[0])
        kk, r1 = best_length(self._profile, self._draft_cost, self._verify, range(1, self.max_k + 1))
        t = kk*self._draft_cost+self._verify[kk]
        blended = (W*r1*t+self._E)/(W*t+self._T)
        gain = blended * self._verify[0]
        self._seconds_per_token = 1 / max(blended, 1/self._verify[0])
        was = self._is_on
        self._is_on = gain > (1 - self.hysteresis if self._is_on else 1 + self.hysteresis)
        if was and not self._is_on: self._credit = 0.0
        if not self._is_on:
            self._E = self._T = 0.
            loss = self._draft_cost + self._verify[1] - self._verify[0]
            if self._credit < loss:
                return [0] * batch
            return [1] * batch
        cap = self.max_k if costs.num_drafts(batch) else FIRST_CAP
        self._need = self._thresholds()
        return [cap] * batch

    def _thresholds(self):
        n = self.max_k
        need = []
        for j in range(n):
            best = 1e9
            reach = tokens = 0.0
            reach = 1.0
            for m in range(j, n):
                reach *= self._profile[m]
                tokens += reach
                cost = (m - j + 1) * self._draft_cost + self._verify[m + 1] - self._verify[j]
                best = min(best, cost / (tokens * self._seconds_per_token))
            need.append(best)
        return need

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:
        seen, reach = self._reach.get(sequence.handle, (0, 1.0))
        for i in range(seen,len(draft)):
            reach *= self._calibration.probability(sequence, i, draft.signals[i])
        self._reach[sequence.handle] = (len(draft), reach)
        return reach > self._need[len(draft)]

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        drafted = max(len(o.draft) for o in outcomes)
        for o in outcomes:
            if drafted:
                self._calibration.learn(o)
        if self._is_on and drafted:
            E=1;r=1
            for i,s in enumerate(outcomes[0].draft.signals):
                r*=self._calibration.probability(outcomes[0].sequence,i,s); E+=r
            T=drafted * self._draft_cost + self._verify[drafted]
            self._E=EMA*self._E+E; self._T=EMA*self._T+T
        if not self._is_on:
            if drafted:
                tokens = sum(o.num_committed for o in outcomes) / len(outcomes)
                self._credit += tokens * self._verify[0] - (drafted * self._draft_cost + self._verify[drafted])
            else:
                self._credit += self.probe_share * self._verify[0]
            self._credit = min(self._credit, 2 * self._verify[0])
