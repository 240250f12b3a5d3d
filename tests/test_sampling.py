"""Processors, noise and signals: against hand-computed values, Transformers and definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from glimpse.config import Method, SamplingParams
from glimpse.sampling import (
    greedy_tokens,
    gumbel,
    gumbel_argmax,
    penalise,
    process_logits,
    sample,
    signal,
    token_logprobs,
)
from glimpse.types import Sequence

PROMPT = [0, 1, 1]
INF = math.inf


def make_sequence(
    params: SamplingParams | None = None,
    output_ids: SequenceOf[int] = (),
    prompt_ids: SequenceOf[int] = PROMPT,
    eos: frozenset[int] = frozenset(),
    **options: float,
) -> Sequence:
    return Sequence(
        handle=0,
        token_ids=[*prompt_ids, *output_ids],
        num_prompt_tokens=len(prompt_ids),
        params=params or SamplingParams(**options),
        method=Method("test"),
        acceptance="greedy",
        seed=1,
        eos_token_ids=eos,
    )


def law(logits: SequenceOf[float], **options: float) -> list[float]:
    """Probabilities from one row of logits with no output yet."""
    rows = torch.tensor([logits], dtype=torch.float64)
    return process_logits(rows, make_sequence(**options))[0].exp().tolist()


# ---------------------------------------------------------------------------- hand-computed values


def test_nothing_is_copied_when_everything_is_off() -> None:
    logits = torch.randn(3, 5)
    sequence = make_sequence(min_tokens=2, output_ids=[1, 2], temperature=0.7, top_k=2)
    assert penalise(logits, sequence, [3, 4]) is logits


def test_repetition_penalty_covers_prompt_and_output() -> None:
    logits = torch.tensor([[2.0, -2.0, 4.0, 4.0, -4.0]])
    sequence = make_sequence(repetition_penalty=2.0, output_ids=[2, 2])
    assert penalise(logits, sequence).tolist() == [[1.0, -4.0, 2.0, 4.0, -4.0]]


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    sequence = make_sequence(presence_penalty=0.5, frequency_penalty=0.25, output_ids=[2, 2, 3])
    assert penalise(torch.zeros(1, 5), sequence).tolist() == [[0.0, 0.0, -1.0, -0.75, 0.0]]


def test_each_row_has_its_own_history() -> None:
    sequence = make_sequence(frequency_penalty=1.0, output_ids=[4])
    rows = penalise(torch.zeros(3, 5), sequence, [4, 2])
    assert rows.tolist() == [[0, 0, 0, 0, -1], [0, 0, 0, 0, -2], [0, 0, -1, 0, -2]]
    last = penalise(torch.zeros(1, 5), sequence, [4, 2])
    assert last.tolist() == rows[-1:].tolist()


def test_bias_is_added_before_the_penalties() -> None:
    sequence = make_sequence(logit_bias={0: 3.0, 3: -INF}, repetition_penalty=2.0)
    penalised = penalise(torch.tensor([[1.0, 1.0, 1.0, 1.0]]), sequence)
    assert penalised.tolist() == [[2.0, 0.5, 1.0, -INF]]


def test_min_tokens_forbids_eos_and_stop_ids_row_by_row() -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=(2, 99))
    sequence = make_sequence(params, output_ids=[3], eos=frozenset({1, 77}))
    rows = penalise(torch.zeros(4, 4), sequence, [3, 3, 3])
    forbidden = [0.0, -INF, -INF, 0.0]
    assert rows.tolist() == [forbidden, forbidden, [0.0] * 4, [0.0] * 4]


def test_min_tokens_leaves_an_ignored_eos_alone() -> None:
    params = SamplingParams(min_tokens=3, ignore_eos=True, stop_token_ids=(2,))
    rows = penalise(torch.zeros(1, 4), make_sequence(params, eos=frozenset({1})))
    assert rows.tolist() == [[0.0, 0.0, -INF, 0.0]]


def test_the_raw_logits_are_never_changed() -> None:
    logits = torch.zeros(1, 5)
    options = {"logit_bias": {1: 5.0}, "repetition_penalty": 2.0, "presence_penalty": 1.0}
    process_logits(logits, make_sequence(output_ids=[3], temperature=0.5, top_k=1, **options))
    assert logits.tolist() == [[0.0] * 5]


def test_temperature() -> None:
    assert law([0.0, math.log(2)], temperature=0.5) == pytest.approx([0.2, 0.8])


def test_top_k_keeps_ties_with_the_last_one() -> None:
    logits = [math.log(x) for x in (4, 2, 2, 1, 1)]
    assert law(logits, temperature=1, top_k=1) == [1, 0, 0, 0, 0]
    assert law(logits, temperature=1, top_k=2) == pytest.approx([0.5, 0.25, 0.25, 0, 0])
    assert law(logits, temperature=1, top_k=99) == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1])


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.01, [1, 0, 0]), (0.49, [1, 0, 0]), (0.51, [0.625, 0.375, 0]), (0.81, [0.5, 0.3, 0.2])],
)
def test_top_p_keeps_the_token_that_crosses_it(top_p: float, expected: list[float]) -> None:
    logits = [math.log(x) for x in (0.5, 0.3, 0.2)]
    assert law(logits, temperature=1, top_p=top_p) == pytest.approx(expected)


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]
    # 0.4 is 0.57 of the two that are kept, and only 0.4 of all.
    assert law(logits, temperature=1, top_k=2, top_p=0.5) == [1, 0, 0, 0]
    assert law(logits, temperature=1, top_p=0.5) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = [math.log(x) for x in (0.6, 0.31, 0.09)]
    assert law(logits, temperature=1, min_p=0.5) == pytest.approx([60 / 91, 31 / 91, 0])
    assert law(logits, temperature=1, min_p=0.6) == [1, 0, 0]


def test_top_p_on_a_large_vocabulary_looks_beyond_the_first_candidates() -> None:
    logits = torch.linspace(0, -1, 6000, dtype=torch.float64)[torch.randperm(6000)]
    kept = process_logits(logits[None], make_sequence(temperature=1, top_p=0.9))[0] > -INF
    probs = logits.softmax(0)
    assert probs[kept].sum() >= 0.9 > probs[kept].sum() - probs[kept].min()
    assert probs[kept].min() > probs[~kept].max()


def test_greedy_law_is_one_hot_at_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 0.0, 1.0]])
    sequence = make_sequence()
    assert process_logits(logits, sequence, [0]).tolist() == [[-INF, 0.0, -INF], [0.0, -INF, -INF]]
    assert greedy_tokens(logits, sequence, [0]) == [1, 0]


def test_greedy_tokens_are_those_of_the_penalised_logits() -> None:
    sequence = make_sequence(presence_penalty=1.0)
    assert greedy_tokens(torch.tensor([[0.0, 0.0, 0.5, 0.2]] * 3), sequence, [2, 3]) == [2, 3, 0]


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-320])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    logits = torch.tensor([[3e4, -3e4, 2.9e4]])
    probs = process_logits(logits, make_sequence(temperature=temperature)).exp()
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
)
def test_arithmetic_is_at_least_float32(given_type: torch.dtype, expected: torch.dtype) -> None:
    logits = torch.randn(1, 8).to(given_type)
    for temperature in (0.0, 1.0, 0.7):
        assert process_logits(logits, make_sequence(temperature=temperature)).dtype == expected


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("row", [[math.nan, 1.0], [-INF, -INF], [INF, 1.0]])
def test_a_row_without_a_finite_maximum_is_an_error(temperature: float, row: list[float]) -> None:
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(ValueError, match="largest logit of each row must be finite"):
        process_logits(logits, make_sequence(temperature=temperature), [0])


def test_forbidding_every_token_is_an_error() -> None:
    sequence = make_sequence(min_tokens=1, eos=frozenset({0, 1}))
    with pytest.raises(ValueError, match="must be finite"):
        greedy_tokens(torch.zeros(1, 2), sequence)


def test_a_bias_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"logit_bias\[4\].*0 to 3"):
        penalise(torch.zeros(1, 4), make_sequence(logit_bias={0: 1.0, 4: 1.0}))


def test_more_rows_than_histories_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 rows of logits for 1 drafted"):
        penalise(torch.zeros(3, 4), make_sequence(), [1])


# ------------------------------------------------------------------- Transformers' own processors

CASES = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "repetition_penalty": 1.2},
    {"temperature": 0.8, "top_k": 7},
    {"temperature": 0.8, "top_p": 0.8},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "min_tokens": 4},
    {"temperature": 1.0, "logit_bias": {3: 2.5, 9: -4.0}, "repetition_penalty": 1.5},
    {
        "temperature": 0.6,
        "repetition_penalty": 0.8,
        "logit_bias": {2: -INF, 5: 1.0},
        "min_tokens": 3,
        "top_k": 12,
        "top_p": 0.7,
        "min_p": 0.02,
    },
]


def transformers_processors(params: SamplingParams, eos: int) -> LogitsProcessorList:
    """The processors of ``generate``, in its order."""
    chain: list[object] = []
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias.items()}
        chain.append(SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens:
        chain.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, eos))
    if params.temperature != 1:
        chain.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    return LogitsProcessorList(chain)


@pytest.mark.parametrize("options", CASES, ids=lambda options: ",".join(options))
def test_each_row_agrees_with_transformers(options: dict[str, float]) -> None:
    params = SamplingParams(**options)
    sequence = make_sequence(params, output_ids=[5], eos=frozenset({6}))
    draft_ids = [7, 7, 2, 9]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 40, generator=generator)
    rows = process_logits(logits, sequence, draft_ids)
    processors = transformers_processors(params, eos=6)
    for i, row in enumerate(rows):
        history = torch.tensor([[*sequence.token_ids, *draft_ids[:i]]])
        expected = processors(history, logits[i : i + 1].clone()).log_softmax(-1)[0]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------ properties


@given(
    logits=st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0, 0.999),
    temperature=st.floats(1e-3, 100),
)
def test_a_law_is_never_empty_and_sums_to_one(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    options = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    log_probs = process_logits(torch.tensor([logits]), make_sequence(**options))[0]
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert log_probs[torch.tensor(logits).argmax()] == log_probs.max() > -INF


def test_a_row_is_processed_like_that_row_alone() -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "min_p": 0.01}
    sequence = make_sequence(output_ids=[4, 4], **options)
    logits, draft_ids = torch.randn(4, 300), [7, 4, 9]
    rows = process_logits(logits, sequence, draft_ids)
    for i in range(4):
        alone = process_logits(logits[i : i + 1], sequence, draft_ids[:i])[0]
        torch.testing.assert_close(rows[i], alone, atol=1e-6, rtol=0)


# ----------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("size", [1, 3, 4, 5, 64, 1001])
def test_noise_of_a_token_does_not_depend_on_the_vocabulary(size: int) -> None:
    assert gumbel(3, 1, 17, 4096)[:size].equal(gumbel(3, 1, 17, size))


def test_noise_is_keyed_by_seed_choice_and_position() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 0, 0), (2**63, 0, 0)]
    noises = [gumbel(*key, 512) for key in keys]
    assert gumbel(*keys[3], 512).equal(noises[3])
    flat = torch.stack(noises)
    assert len(flat.unique()) == flat.numel()


def test_noise_is_apart_from_the_sequences_own_stream() -> None:
    sequence = make_sequence()
    stream = np.random.Philox(key=np.array([1, 0], dtype=np.uint64)).random_raw(256)
    assert sequence.rng.bit_generator.random_raw(256).tolist() == stream.tolist()
    uniform = torch.exp(-torch.exp(-gumbel(1, 0, 0, 256))).numpy()
    assert not np.isin((uniform * 2**40).astype(np.int64), stream >> np.uint64(24)).any()


def test_noise_is_standard_gumbel_along_tokens_and_along_positions() -> None:
    tokens = gumbel(5, 0, 2, 50_000).numpy()
    positions = np.array([gumbel(5, 0, position, 1).item() for position in range(5000)])
    for values in (tokens, positions):
        assert stats.kstest(values, "gumbel_r").pvalue > 0.01
    assert abs(np.corrcoef(tokens[:-1], tokens[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_noise_is_finite_for_every_random_word(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "glimpse.sampling._random_bits", lambda *key: np.array([bits], dtype=np.uint64)
    )
    assert gumbel(0, 0, 0, 1).isfinite().all()


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("num_kept", [1, 5, 64, 900])
def test_gumbel_argmax_equals_the_plain_formula(scale: float, num_kept: int) -> None:
    for position in range(40):
        logits = scale * torch.randn(900, generator=torch.Generator().manual_seed(position))
        logits[num_kept:] = -INF
        log_probs = logits[torch.randperm(900)].log_softmax(-1)
        expected = (log_probs.double() + gumbel(8, 2, position, 900)).argmax()
        assert gumbel_argmax(log_probs, 8, 2, position) == expected


def test_gumbel_argmax_samples_from_the_law() -> None:
    probs = torch.tensor([0.5, 0.25, 0.2, 0.05, 0.0])
    tokens = [gumbel_argmax(probs.log(), 3, 0, position) for position in range(4000)]
    counts = np.bincount(tokens, minlength=5)
    assert counts[4] == 0
    assert stats.chisquare(counts[:4], 4000 * probs[:4].numpy().astype(float)).pvalue > 0.01


class Draws:
    """A generator that always draws the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("draw", "expected"), [(0.0, 1), (0.249, 1), (0.25, 3), (np.nextafter(1.0, 0.0), 3)]
)
def test_sample_never_returns_an_index_of_weight_zero(draw: float, expected: int) -> None:
    assert sample(np.array([0.0, 1.0, 0.0, 3.0, 0.0]), Draws(draw)) == expected


# --------------------------------------------------------------------------------------- signals


def assert_signal(logits: Tensor, token_id: int) -> None:
    found = signal(logits, token_id)
    probs = logits.double().softmax(-1)
    first, second = probs.topk(2).values.log().tolist()
    assert found.entropy == pytest.approx(torch.special.entr(probs).sum().item(), abs=1e-4)
    assert found.top_prob == pytest.approx(probs.max().item(), rel=1e-4)
    assert found.margin == pytest.approx(first - second, abs=1e-4)
    assert found.token_prob == pytest.approx(probs[token_id].item(), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("top", [0, 31, 63])
def test_signal_is_that_of_the_definitions(dtype: torch.dtype, top: int) -> None:
    logits = torch.randn(64)
    logits[top] = 6.0
    assert_signal(logits.to(dtype), token_id=7)
    assert_signal(logits.to(dtype), token_id=top)


def test_signal_of_a_uniform_law() -> None:
    found = signal(torch.zeros(8), 3)
    assert found.entropy == pytest.approx(math.log(8))
    assert (found.top_prob, found.margin, found.token_prob) == (0.125, 0.0, 0.125)


def test_signal_with_forbidden_tokens() -> None:
    found = signal(torch.tensor([0.0, -INF, 0.0, -INF]), 1)
    assert found.entropy == pytest.approx(math.log(2))
    assert (found.top_prob, found.margin, found.token_prob) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_signal_of_broken_logits_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="draft logit must be finite"):
        signal(torch.tensor([0.0, bad]), 0)


def test_token_logprobs_are_those_of_the_raw_logits() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log() + 5
    found = token_logprobs(logits, 3, num_top=2)
    assert found.token_id == 3
    assert found.logprob == pytest.approx(math.log(0.2))
    assert list(found.top) == [1, 2]
    assert list(found.top.values()) == pytest.approx([math.log(0.4), math.log(0.3)])
    assert token_logprobs(logits, 3, num_top=0).top == {}
    assert len(token_logprobs(logits, 3, num_top=9).top) == 4
