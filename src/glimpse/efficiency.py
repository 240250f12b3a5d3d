"""When speculation pays: the paper's Eq. 1, 2 and 8, and a roofline that predicts their costs.

Two numbers are called acceptance. ``acceptance_rate`` is the paper's alpha = E[m / k], accepted
over drafted for a given draft length. ``token_acceptance`` is the probability that a drafted token
is accepted once all before it were; for a constant one the accepted prefix is geometric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from glimpse.config import ModelConfig

PAPER_ACCEPTANCE_RATES = {4: 0.934, 20: 0.679}
"""Accepted over drafted for fixed draft lengths (SparseSpec-L, ablation on speculation length)."""


def speedup(acceptance_rate: float, k: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
    """Eq. 1, tokens per second over those of plain decoding; above 1 speculation pays.

    ``cost_ratio`` is C_d / C_v. The paper takes a verify pass to cost a plain one whatever k is;
    ``verify_ratio`` = C_v(k) / C_v(0) is the general form.
    """
    return (acceptance_rate * k + 1) / (k * cost_ratio + verify_ratio)


def speedup_slope(acceptance_rate: float, k: int, cost_ratio: float) -> float:
    """Eq. 2, dS/dk at a constant acceptance rate: its sign is that of alpha - gamma."""
    return (acceptance_rate - cost_ratio) / (k * cost_ratio + 1) ** 2


def prefix_probabilities(probabilities: Sequence[float]) -> list[float]:
    """Probability that the first i + 1 drafts are all accepted, for each i."""
    return list(accumulate(probabilities, mul))


def expected_tokens(probabilities: Sequence[float]) -> float:
    """Tokens committed by a round whose i-th draft is accepted with ``probabilities[i]`` once those
    before it are: the numerator of Eq. 8, the correction token included.
    """
    return 1.0 + sum(prefix_probabilities(probabilities))


def efficiency(probabilities: Sequence[float], draft_cost: float, verify_cost: float) -> float:
    """Eq. 8, expected tokens per second of a round that drafts ``len(probabilities)`` tokens."""
    return expected_tokens(probabilities) / (len(probabilities) * draft_cost + verify_cost)


def best_length(
    probabilities: Sequence[float],
    draft_cost: float,
    verify_costs: Sequence[float],
    candidates: Sequence[int] | None = None,
) -> tuple[int, float]:
    """Eq. 8's k* among ``candidates`` (default: 0 to ``len(probabilities)``) and its efficiency.

    ``verify_costs[k]`` is C_v(k), so ``verify_costs[0]`` is a plain pass and k = 0 plain decoding.
    The smallest of equally good lengths wins.
    """
    candidates = range(len(probabilities) + 1) if candidates is None else candidates
    if not candidates or max(candidates) > len(probabilities) or min(candidates) < 0:
        raise ValueError(f"candidates={list(candidates)}: must lie in 0..{len(probabilities)}")
    tokens = list(accumulate(prefix_probabilities(probabilities), initial=1.0))
    scores = {k: tokens[k] / (k * draft_cost + verify_costs[k]) for k in candidates}
    best = max(sorted(scores), key=scores.__getitem__)
    return best, scores[best]


def inversion_point(
    token_acceptance: float, draft_cost: float, verify_costs: Sequence[float]
) -> int | None:
    """The efficiency inversion: the first k after which one more drafted token lowers Eq. 8.

    None if efficiency still rises at the end of ``verify_costs``.
    """
    last = len(verify_costs) - 1
    scores = [
        efficiency([token_acceptance] * k, draft_cost, verify_costs[k]) for k in range(last + 1)
    ]
    return next((k for k in range(last) if scores[k + 1] <= scores[k]), None)


def expected_accepted(token_acceptance: float, k: int) -> float:
    """E[m] of k drafts: the sum of a^i for i from 1 to k."""
    return expected_tokens([token_acceptance] * k) - 1.0


def acceptance_rate(token_acceptance: float, k: int) -> float:
    """The paper's alpha = E[m / k] for a constant probability per token; k at least 1."""
    return expected_accepted(token_acceptance, k) / k


def token_acceptance(acceptance_rate: float, k: int) -> float:
    """The constant probability per token that gives this accepted / drafted at length k."""
    return fit_token_acceptance({k: acceptance_rate})


def fit_token_acceptance(rates: Mapping[int, float]) -> float:
    """The constant probability per token nearest (least squares) to acceptance rates by k."""
    invalid = {k: rate for k, rate in rates.items() if k < 1 or not 0 <= rate <= 1}
    if invalid or not rates:
        raise ValueError(f"acceptance rates {dict(rates)}: need k >= 1 and rates from 0 to 1")

    def slope(value: float) -> float:
        step = 1e-6
        near = (max(0.0, value - step), min(1.0, value + step))
        low, high = (
            sum((acceptance_rate(a, k) - rate) ** 2 for k, rate in rates.items()) for a in near
        )
        return high - low

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return (low + high) / 2


# ------------------------------------------------------------------------------------ roofline


@dataclass(frozen=True)
class Machine:
    """What bounds a pass: bytes/s of memory, FLOP/s of matrix products, bytes of memory."""

    name: str
    bandwidth: float
    flops: float
    memory: float
    overhead: float = 0.0
    """Seconds that every pass costs beside memory and arithmetic (launches, Python)."""


@dataclass(frozen=True)
class Prediction:
    """What the roofline says about one context length and batch."""

    context: int
    batch: int
    draft_s: float
    plain_s: float
    verify_s: float
    """Of k + 1 rows per sequence, at the best k."""
    k: int
    speedup: float
    limit: float
    """The speed-up if every draft were accepted, at the best k for that."""
    inversion_point: int | None
    """None: beyond the largest k considered."""
    bound: str
    """What most of the verify pass waits for: weights, KV, compute or overhead."""
    kv_bytes: float
    fits: bool
    """Whether weights, KV and glimpse fit the machine's memory."""

    @property
    def cost_ratio(self) -> float:
        """C_d / C_v(0), the paper's gamma."""
        return self.draft_s / self.plain_s


@dataclass(frozen=True)
class Roofline:
    """Costs of passes from shapes and machine figures alone: a lower bound on what they take.

    Linear layers and attention follow one another, so each has its own max(bytes / bandwidth,
    FLOP / peak), and the times add up.
    """

    model: ModelConfig
    machine: Machine
    weight_bytes: float = 2.0
    """Per weight."""
    kv_bytes: float = 2.0
    """Per element of the KV."""
    budget: float = 0.1
    min_budget: int = 256
    kv_traffic: float = 1.0
    """Bytes moved for each byte of KV read: 1 in a fused kernel that reads it once."""

    @property
    def num_weights(self) -> int:
        """All weights held in memory (norms and biases, below 0.1 %, left out)."""
        embedding = 0 if self.model.has_tied_embeddings else self.model.vocab_size
        return self.model.num_linear_weights + embedding * self.model.hidden_size

    @property
    def kv_bytes_per_token(self) -> float:
        return self.model.num_kv_elements * self.kv_bytes

    def glimpse_size(self, context: int) -> int:
        """Positions that a draft step sees of a context."""
        return min(context, max(self.min_budget, round(self.budget * context)))

    def parts(self, rows: int, batch: int, context: int) -> dict[str, float]:
        """Seconds of a pass over ``rows`` tokens for each of ``batch`` sequences of ``context``
        positions, by what they wait for: weights, KV, compute, overhead.
        """
        m, machine, tokens = self.model, self.machine, rows * batch
        weights = self.weight_bytes * m.num_linear_weights / machine.bandwidth
        linear = 2 * tokens * m.num_linear_weights / machine.flops
        kv = self.kv_traffic * batch * context * self.kv_bytes_per_token / machine.bandwidth
        # Scores and their product with the values: 2 FLOP each per head, dimension and position.
        heads = m.num_layers * m.num_query_heads * m.head_dim
        attention = 4 * tokens * heads * context / machine.flops
        return {
            "weights": weights if weights >= linear else 0.0,
            "KV": kv if kv >= attention else 0.0,
            "compute": (linear if linear > weights else 0.0)
            + (attention if attention > kv else 0.0),
            "overhead": machine.overhead,
        }

    def seconds(self, rows: int, batch: int, context: int) -> float:
        return sum(self.parts(rows, batch, context).values())

    def predict(
        self, context: int, batch: int = 1, token_acceptance: float = 0.9, max_k: int = 20
    ) -> Prediction:
        """The best draft length up to ``max_k`` by Eq. 8 with these costs, and what it gives."""
        draft = self.seconds(1, batch, self.glimpse_size(context))
        verify = [self.seconds(k + 1, batch, context) for k in range(max_k + 1)]
        k, best = best_length([token_acceptance] * max_k, draft, verify)
        _, best_if_accepted = best_length([1.0] * max_k, draft, verify)
        parts = self.parts(k + 1, batch, context)
        kv_bytes = batch * context * self.kv_bytes_per_token
        glimpse_bytes = batch * self.glimpse_size(context) * self.kv_bytes_per_token
        needed = self.weight_bytes * self.num_weights + kv_bytes + glimpse_bytes
        return Prediction(
            context=context,
            batch=batch,
            draft_s=draft,
            plain_s=verify[0],
            verify_s=verify[k],
            k=k,
            speedup=best * verify[0],
            limit=best_if_accepted * verify[0],
            inversion_point=inversion_point(token_acceptance, draft, verify),
            bound=max(parts, key=parts.__getitem__),
            kv_bytes=kv_bytes,
            fits=needed <= self.machine.memory,
        )
