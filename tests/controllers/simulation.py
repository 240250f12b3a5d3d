"""A decode loop with a virtual clock: texts with known fates of drafts, machines with noise."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from glimpse.config import Method, SamplingParams
from glimpse.controllers import Controller
from glimpse.costs import CostModel
from glimpse.types import Draft, DraftSignal, Outcome, Sequence

CONTEXT = 7500


@dataclass(frozen=True)
class Machine:
    """Milliseconds of a draft step, of a verify pass by rows, and of the rest of a round, to which
    the first one that drafts after a plain one adds ``resuming``."""

    draft: float
    verify: dict[int, float]
    overhead: float = 0.5
    resuming: float = 0.0

    def pass_ms(self, rows: int) -> float:
        known = sorted(self.verify)
        i = min(max(bisect_right(known, rows) - 1, 0), len(known) - 2)
        left, right = known[i], known[i + 1]
        slope = (self.verify[right] - self.verify[left]) / (right - left)
        return self.verify[left] + slope * (rows - left)


CPU = Machine(42, {1: 60, 2: 68, 3: 75, 5: 95, 9: 130, 17: 200}, overhead=2)
NATIVE = Machine(10, {1: 22, 2: 24.5, 3: 28, 5: 34, 9: 50, 17: 82}, overhead=1)
GPU = Machine(5, {1: 20, 17: 21})
MACHINES = {"cpu": CPU, "native": NATIVE, "gpu": GPU}


@dataclass
class Text:
    """What the drafter would propose at each place: would it be accepted, and its signal.

    ``mute`` signals say nothing about acceptance; otherwise the margin does, as in greedy decoding.
    """

    acceptance: float
    seed: int = 0
    length: int = 1000
    is_mute: bool = False
    is_accepted: list[bool] = field(init=False)
    signals: list[DraftSignal] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        margins = _margins(rng, self.length)
        probabilities = np.full(self.length, self.acceptance)
        if not self.is_mute:
            probabilities = _sigmoid(_offset(self.acceptance) + 2 * np.minimum(margins, 4))
        self.is_accepted = (rng.random(self.length) < probabilities).tolist()
        entropies = (np.maximum(0.02, 2.1 - 0.45 * np.minimum(margins, 4))) ** 2
        self.signals = [
            DraftSignal(float(h), 0.5, float(m), 0.5)
            for h, m in zip(entropies, margins, strict=True)
        ]

    def __add__(self, other: Text) -> Text:
        both = Text(self.acceptance, length=0)
        both.is_accepted = self.is_accepted + other.is_accepted
        both.signals = self.signals + other.signals
        return both


@dataclass
class Run:
    """What a simulation did: milliseconds without noise, and (drafted, accepted) by round."""

    ms: float = 0.0
    tokens: int = 0
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.tokens / self.ms

    def drafting_share(self, first: int, last: int) -> float:
        """Share of the rounds between two places of the text that drafted."""
        place, drafted = 0, []
        for k, accepted in self.rounds:
            if first <= place < last:
                drafted.append(k > 0)
            place += accepted + 1
        return sum(drafted) / len(drafted)


def sequence(handle: int = 0, temperature: float = 0.0) -> Sequence:
    params = SamplingParams(max_tokens=10**6, temperature=temperature)
    return Sequence(handle, [0] * CONTEXT, CONTEXT, params, Method("simulated"), "greedy", 0)


def simulate(
    controller: Controller,
    machine: Machine,
    text: Text,
    num_tokens: int,
    costs: CostModel | None = None,
    seed: int = 0,
    noise: float = 0.08,
    outliers: float = 0.03,
) -> Run:
    """Decode one text; like the engine's, the first round is plain and not planned."""
    rng = np.random.default_rng(seed)
    costs, seq, run = costs or CostModel(), sequence(), Run()

    def measured(ms: float) -> float:
        disturbed = rng.uniform(2, 5) if rng.random() < outliers else 1.0
        return ms / 1e3 * math.exp(rng.normal(0, noise)) * disturbed

    while run.tokens < num_tokens:
        cap = controller.plan([seq], costs)[0] if run.rounds else 0
        draft, accepted = write(controller, seq, text, run.tokens, cap)
        k = len(draft)
        is_resuming = k > 0 and run.rounds[-1][0] == 0
        overhead = (machine.overhead if k else 0.3) + machine.resuming * is_resuming
        seconds = overhead / 1e3
        if k:
            step = measured(machine.draft)
            costs.observe_draft(1, CONTEXT // 10, step, num_steps=k)
            seconds += k * step
        verify = measured(machine.pass_ms(k + 1))
        costs.observe_verify(k + 1, 1, CONTEXT + run.tokens, verify)
        costs.observe_round(k > 0, seconds + verify)
        seq.token_ids.extend([0] * (accepted + 1))
        if run.rounds:
            controller.learn([Outcome(seq, draft, accepted, accepted + 1, "")], seconds + verify)
        run.ms += k * machine.draft + machine.pass_ms(k + 1) + overhead
        run.tokens += accepted + 1
        run.rounds.append((k, accepted))
    return run


def write(
    controller: Controller, seq: Sequence, text: Text, place: int, cap: int
) -> tuple[Draft, int]:
    """A draft of at most ``cap`` tokens at a place of a text, and how many are accepted."""
    draft = Draft()
    while len(draft) < cap:
        draft.signals.append(text.signals[place + len(draft)])
        draft.token_ids.append(0)
        if len(draft) < cap and not controller.keep_drafting(seq, draft):
            break
    fate = text.is_accepted[place : place + len(draft)]
    return draft, fate.index(False) if False in fate else len(fate)


def _margins(rng: np.random.Generator, length: int) -> np.ndarray:
    """Margins of a text: easy and hard stretches, a median of two nats."""
    state, states = 0.0, []
    for innovation in rng.standard_normal(length):
        state = 0.6 * state + 0.8 * innovation
        states.append(state)
    return np.exp(0.8 + 0.8 * np.array(states))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_OFFSETS: dict[float, float] = {}


def _offset(acceptance: float) -> float:
    """What makes the mean probability the acceptance wanted."""
    if acceptance not in _OFFSETS:
        margins = np.minimum(_margins(np.random.default_rng(1), 5000), 4)
        low, high = -15.0, 15.0
        for _ in range(30):
            middle = (low + high) / 2
            is_low = _sigmoid(middle + 2 * margins).mean() < acceptance
            low, high = (middle, high) if is_low else (low, middle)
        _OFFSETS[acceptance] = low
    return _OFFSETS[acceptance]
