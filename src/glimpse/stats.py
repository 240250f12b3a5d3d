"""Metrics of a generation, defined once. Seconds are wall time; counts are tokens or rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

REPETITION_NGRAM = 8


@dataclass
class Stats:
    """Counts and times of one sequence. ``drafted`` counts tokens that were really proposed."""

    runner: str = ""
    method: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, those whose KV was there already."""
    generated_tokens: int = 0
    ttft_s: float = 0.0
    """From the request to its first token, prefill included."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    """From the end of prefill to the last token."""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    """Drafted tokens that the target agreed with, those that a stop then cut off included."""
    repetition: float = 0.0
    """Share of the output's 8-grams that occurred in it before: loops flatter acceptance."""
    draft_lengths: Counter[int] = field(default_factory=Counter)
    """How many rounds drafted k tokens, by k."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of the rounds by part: control, refresh, draft, verify, accept, commit. ``control``
    is the controller's own work; what of it falls inside a draft is counted in both."""

    def __add__(self, other: Stats) -> Stats:
        """Pooled over texts: counts and seconds add up, repetition is weighted by tokens."""
        pooled = Stats(self.runner, self.method)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens", "ttft_s", "prefill_s",
                     "decode_s", "rounds", "drafted", "accepted", "draft_lengths"):  # fmt: skip
            setattr(pooled, name, getattr(self, name) + getattr(other, name))
        for part in self.seconds | other.seconds:
            pooled.seconds[part] = self.seconds.get(part, 0.0) + other.seconds.get(part, 0.0)
        repeats = (
            self.repetition * self.generated_tokens + other.repetition * other.generated_tokens
        )
        pooled.repetition = repeats / max(1, pooled.generated_tokens)
        return pooled

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted(self) -> float:
        """accepted / rounds, without the bonus token."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """committed / rounds."""
        return self.generated_tokens / self.rounds if self.rounds else 0.0

    @property
    def mean_k(self) -> float:
        """drafted / rounds."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.generated_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def total_s(self) -> float:
        """What a person waits for: prefill and decoding."""
        return self.prefill_s + self.decode_s

    def as_dict(self) -> dict[str, Any]:
        """Everything above under its own name, for JSON."""
        return {
            "runner": self.runner,
            "method": self.method,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "ttft_s": self.ttft_s,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "total_s": self.total_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted": self.mean_accepted,
            "tokens_per_round": self.tokens_per_round,
            "mean_k": self.mean_k,
            "repetition": self.repetition,
            "draft_lengths": {str(k): self.draft_lengths[k] for k in sorted(self.draft_lengths)},
            "seconds": dict(self.seconds),
        }


def repetition(token_ids: Sequence[int], n: int = REPETITION_NGRAM) -> float:
    """Share of the n-grams of ``token_ids`` that repeat an earlier one; 0 if there are none."""
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
