"""Acceptance rules: the law and the tokens of plain decoding, whatever is drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from glimpse.acceptance import (
    Acceptance,
    Coupled,
    Greedy,
    Rejection,
    acceptances,
    resolve_acceptance,
)
from glimpse.config import Method, SamplingParams
from glimpse.sampling import process_logits
from glimpse.types import Draft, Sequence

VOCAB = 3
RULES = {"greedy": Greedy(), "rejection": Rejection(), "coupled": Coupled()}
Table = Tensor
"""A model as small as can be: logits [vocab, vocab] of the next token by the last one."""


def make_sequence(seed: int = 1, **options: float) -> Sequence:
    return Sequence(
        handle=0,
        token_ids=[0],
        num_prompt_tokens=1,
        params=SamplingParams(**options),
        method=Method("test"),
        acceptance="greedy",
        seed=seed,
    )


def random_table(seed: int, scale: float = 1.5, vocab: int = VOCAB) -> Table:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)


def propose(rule: Acceptance, sequence: Sequence, table: Table, k: int) -> Draft:
    """Draft k tokens, as a drafter does."""
    draft = Draft()
    for _ in range(k):
        last = [*sequence.token_ids, *draft.token_ids][-1]
        token_id, log_probs = rule.propose(sequence, draft, table[last])
        draft.token_ids.append(token_id)
        if log_probs is not None:
            draft.log_probs.append(log_probs)
    return draft


def verify(sequence: Sequence, draft: Draft, table: Table) -> Tensor:
    return table[[sequence.token_ids[-1], *draft.token_ids]]


def decode(
    rule: Acceptance,
    sequence: Sequence,
    table: Table,
    num_tokens: int,
    drafter: Callable[[Sequence], Draft] = lambda sequence: Draft(),
) -> tuple[list[int], int]:
    """Whole rounds until there are enough tokens; also the number of accepted ones."""
    num_accepted = 0
    while sequence.num_output_tokens < num_tokens:
        draft = drafter(sequence)
        tokens = rule.accept(sequence, draft, verify(sequence, draft, table))
        assert tokens[:-1] == draft.token_ids[: len(tokens) - 1]
        num_accepted += len(tokens) - 1
        sequence.token_ids += tokens
    return sequence.output_ids[:num_tokens], num_accepted


# ------------------------------------------------------------------------- the law of rejection

PEAKED = 3.0 * torch.eye(VOCAB, dtype=torch.float64)
DISJOINT_TARGET = torch.tensor([[2.0, 1, -60]] * 3, dtype=torch.float64)
DISJOINT_DRAFT = torch.tensor([[-60.0, -60, 0]] * 3, dtype=torch.float64)
LAWS = {
    "different": (random_table(0), random_table(1)),
    "equal": (random_table(2), random_table(2)),
    "peaked draft": (random_table(3), 3 * PEAKED),
    "peaked target": (PEAKED, random_table(4)),
    "disjoint": (DISJOINT_TARGET, DISJOINT_DRAFT),
}


def target_law(sequence: Sequence, table: Table, length: int) -> dict[tuple[int, ...], float]:
    """Exact probability of every continuation, by the processors one position at a time."""
    law = {}
    for tokens in product(range(VOCAB), repeat=length):
        path = [sequence.token_ids[-1], *tokens]
        rows = process_logits(table[path[:-1]], sequence, tokens[:-1])
        law[tokens] = rows[range(length), tokens].sum().exp().item()
    return law


def assert_law(found: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> None:
    """Chi-square test; outcomes expected fewer than 5 times are taken together."""
    total = found.total()
    assert all(law[tokens] > 0 for tokens in found)
    often = [tokens for tokens in law if law[tokens] * total >= 5]
    counts = [found[tokens] for tokens in often]
    expected = [law[tokens] * total for tokens in often]
    if total - sum(expected) >= 5:
        counts.append(total - sum(counts))
        expected.append(total - sum(expected))
    else:
        expected = [value * sum(counts) / sum(expected) for value in expected]
    assert len(counts) > 1
    assert stats.chisquare(counts, expected).pvalue > 0.01


def sample_blocks(
    sequence: Sequence, table: Table, length: int, drafter: Callable[[Sequence], Draft], count: int
) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(count):
        del sequence.token_ids[1:]
        found[tuple(decode(Rejection(), sequence, table, length, drafter)[0])] += 1
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", LAWS)
def test_rejection_sampling_has_the_targets_law(name: str, k: int) -> None:
    target, proposal = LAWS[name]
    sequence = make_sequence(temperature=1.0)
    found = sample_blocks(
        sequence, target, k + 1, lambda seq: propose(Rejection(), seq, proposal, k), 600
    )
    del sequence.token_ids[1:]
    assert_law(found, target_law(sequence, target, k + 1))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "top_k": 2, "min_p": 0.3},
        {"temperature": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_rejection_sampling_under_processors(options: dict[str, float]) -> None:
    target, proposal = random_table(18, scale=1.0), random_table(21, scale=1.0)
    sequence = make_sequence(**options)
    found = sample_blocks(
        sequence, target, 3, lambda seq: propose(Rejection(), seq, proposal, 2), 600
    )
    del sequence.token_ids[1:]
    assert_law(found, target_law(sequence, target, 3))


def test_a_draft_without_a_law_is_not_taken_as_certain() -> None:
    target = random_table(5)
    sequence = make_sequence(temperature=1.0)
    found = sample_blocks(sequence, target, 3, lambda seq: Draft([2, 1]), 1500)
    del sequence.token_ids[1:]
    assert_law(found, target_law(sequence, target, 3))


def test_acceptance_probability_is_the_overlap_of_the_laws() -> None:
    target, proposal = LAWS["different"]
    sequence = make_sequence(temperature=1.0)
    num_accepted = 0
    for _ in range(2000):
        draft = propose(Rejection(), sequence, proposal, 1)
        num_accepted += len(Rejection().accept(sequence, draft, verify(sequence, draft, target)))
    overlap = torch.minimum(target[0].softmax(0), proposal[0].softmax(0)).sum().item()
    assert stats.binomtest(num_accepted - 2000, 2000, overlap).pvalue > 0.01


class Draws:
    """A generator whose draws are known."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)


def rejection_outcome(
    target: list[float], proposal: list[float], token_id: int, *draws: float
) -> list[int]:
    sequence = make_sequence(temperature=1.0)
    sequence.rng = Draws(*draws)
    draft = Draft([token_id], log_probs=[torch.tensor(proposal).log()])
    return Rejection().accept(sequence, draft, torch.tensor([target, [0.0, 0.0, 1.0]]).log())


def test_rejection_by_hand() -> None:
    target, proposal = [0.2, 0.3, 0.5], [0.4, 0.4, 0.2]
    # Token 0 is kept with probability 0.2 / 0.4; else the residual is [0, 0, 0.3].
    assert rejection_outcome(target, proposal, 0, 0.499, 0.0) == [0, 2]
    assert rejection_outcome(target, proposal, 0, 0.501, 0.0) == [2]
    # Token 2 is likelier under the target: it is always kept.
    assert rejection_outcome(target, proposal, 2, 0.999, 0.0) == [2, 2]


def test_a_token_impossible_under_the_target_is_never_kept() -> None:
    assert rejection_outcome([0.0, 0.5, 0.5], [1.0, 0.0, 0.0], 0, 0.0, 0.0) == [1]


def test_equal_laws_always_accept() -> None:
    law = [0.1, 0.2, 0.7]
    assert rejection_outcome(law, law, 0, np.nextafter(1.0, 0.0), 0.0) == [0, 2]


def test_an_empty_residual_falls_back_to_the_target() -> None:
    # Nothing is left of the target beyond the proposal, which is not normalised here, as after
    # rounding: a rejection must still return a token of the target.
    sequence = make_sequence(temperature=1.0)
    sequence.rng = Draws(1.0, 0.6)
    law = torch.tensor([0.5, 0.5, 0.0]).log()
    tokens = Rejection().accept(sequence, Draft([0], log_probs=[law]), torch.stack([law, law]))
    assert tokens == [1]


def test_laws_for_some_tokens_only_are_an_error() -> None:
    draft = Draft([0, 1], log_probs=[torch.zeros(VOCAB)])
    with pytest.raises(ValueError, match="1 laws for 2 drafted tokens"):
        Rejection().accept(make_sequence(temperature=1.0), draft, torch.zeros(3, VOCAB))


# ------------------------------------------------------- greedy and coupled: the very same tokens

OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.8, "top_k": 6},
    {"temperature": 0.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.5, "min_p": 0.02},
]


def random_drafter(seed: int, vocab: int) -> Callable[[Sequence], Draft]:
    rng = np.random.default_rng(seed)

    def drafter(sequence: Sequence) -> Draft:
        return Draft(rng.integers(0, vocab, rng.integers(0, 5)).tolist())

    return drafter


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["greedy", "coupled"])
def test_any_draft_gives_the_tokens_of_plain_decoding(name: str, options: dict[str, float]) -> None:
    if name == "greedy" and options["temperature"] > 0:
        name = resolve_acceptance("auto", SamplingParams(**options))
    rule, target = RULES[name], random_table(6, vocab=8)
    plain, _ = decode(rule, make_sequence(**options), target, 40)
    drafters = {
        "never": lambda seq: Draft([(decode_next(rule, seq, target) + 1) % 8]),
        "always": lambda seq: propose(rule, seq, target, 3),
        "sometimes": lambda seq: propose(rule, seq, random_table(7, vocab=8) + target, 3),
        "random": random_drafter(8, 8),
    }
    accepted = {}
    for kind, drafter in drafters.items():
        tokens, accepted[kind] = decode(rule, make_sequence(**options), target, 40, drafter)
        assert tokens == plain, kind
    assert accepted["never"] == 0
    assert accepted["always"] == 30
    assert 0 < accepted["sometimes"] < 30


def decode_next(rule: Acceptance, sequence: Sequence, table: Table) -> int:
    return rule.accept(sequence, Draft(), verify(sequence, Draft(), table))[0]


@pytest.mark.parametrize("name", RULES)
def test_at_temperature_zero_every_rule_is_greedy(name: str) -> None:
    target, proposal = random_table(9, vocab=8), random_table(10, vocab=8)
    greedy, _ = decode(Greedy(), make_sequence(), target, 20)
    rule = RULES[name]
    tokens, _ = decode(
        rule, make_sequence(), target, 20, lambda seq: propose(rule, seq, proposal, 3)
    )
    assert tokens == greedy


def test_coupled_sampling_has_the_targets_law() -> None:
    target = random_table(11)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(1500):
        sequence = make_sequence(seed, temperature=0.9)
        found[tuple(decode(Coupled(), sequence, target, 2, lambda seq: Draft([1]))[0])] += 1
    assert_law(found, target_law(make_sequence(temperature=0.9), target, 2))


def test_coupled_drafts_agree_more_often_than_independent_ones() -> None:
    target = random_table(12, vocab=8)
    proposal = target + 0.2 * random_table(13, vocab=8)
    p, q = target[0].softmax(0), proposal[0].softmax(0)
    num_same = 0
    for seed in range(500):
        sequence = make_sequence(seed, temperature=1.0)
        draft = propose(Coupled(), sequence, proposal, 1)
        num_same += len(Coupled().accept(sequence, draft, verify(sequence, draft, target))) - 1
    independent, overlap = (p * q).sum().item(), torch.minimum(p, q).sum().item()
    assert independent + 0.2 < num_same / 500 <= overlap + 0.05
    # The bound of Gumbel coupling: sum min(p, q) / (2 - sum min(p, q)) at least.
    assert num_same / 500 > overlap / (2 - overlap) - 0.05


def test_noise_differs_from_choice_to_choice() -> None:
    target = random_table(14, vocab=8)
    texts = []
    for choice in range(2):
        sequence = make_sequence(temperature=1.0)
        sequence.choice = choice
        texts.append(decode(Coupled(), sequence, target, 20)[0])
    assert texts[0] != texts[1]


# ------------------------------------------------------------------------------- all rules alike


@pytest.mark.parametrize("name", RULES)
def test_without_a_draft_there_is_one_token(name: str) -> None:
    tokens = RULES[name].accept(make_sequence(), Draft(), torch.tensor([[0.0, 2.0, 1.0]]))
    assert tokens == [1]


@pytest.mark.parametrize("name", RULES)
def test_the_wrong_number_of_rows_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="3 rows of logits: must be 2"):
        RULES[name].accept(make_sequence(), Draft([1]), torch.zeros(3, VOCAB))


def test_greedy_refuses_to_sample() -> None:
    sequence = make_sequence(temperature=0.5)
    with pytest.raises(ValueError, match=r"temperature=0, not 0\.5; .* coupled, rejection"):
        Greedy().accept(sequence, Draft(), torch.zeros(1, VOCAB))
    with pytest.raises(ValueError, match="needs temperature=0"):
        Greedy().propose(sequence, Draft(), torch.zeros(VOCAB))


def test_the_registry_builds_every_rule_by_name() -> None:
    assert acceptances.names() == sorted(RULES)
    for name, rule in RULES.items():
        assert acceptances.build(name) == rule


def test_auto_is_greedy_at_temperature_0_and_coupled_above() -> None:
    greedy, sampled = SamplingParams(temperature=0), SamplingParams(temperature=0.1)
    assert resolve_acceptance("auto", greedy) == "greedy"
    assert resolve_acceptance("auto", sampled) == "coupled"
    assert resolve_acceptance("rejection", sampled) == "rejection"
    with pytest.raises(ValueError, match=r"needs temperature=0, not 0\.1"):
        resolve_acceptance("greedy", sampled)
    with pytest.raises(ValueError, match="unknown acceptance 'warp'"):
        resolve_acceptance("warp", greedy)
