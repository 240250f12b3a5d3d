"""Under ``rejection`` the law of the text is the target's, whoever drafts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from glimpse.config import Method, SamplingParams
from glimpse.drafters import Assets
from glimpse.engine import Engine
from glimpse.types import RaggedBatch, Runner, Segment
from tests.tiny import decode, prompts, tiny_runner

VOCAB_SIZE = 5
NUM_TEXTS = 1000
PARAMS = SamplingParams(max_tokens=4, temperature=1.0)
VIEW = "verification:budget=0.05,min_budget=5,sink_size=1,recent_size=2,window=2"


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner(vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets(draft_runner=tiny_runner(vocab_size=VOCAB_SIZE, num_layers=2))


@pytest.fixture(scope="module")
def prompt(runner: Runner) -> list[int]:
    (base,) = prompts(runner, (6,))
    return base * 3


@pytest.fixture(scope="module")
def law(runner: Runner, prompt: list[int]) -> np.ndarray:
    """p(second, third) of the sampled tokens; drafts begin at the second."""

    def after(token_ids: list[int]) -> np.ndarray:
        handle = runner.open()
        logits = runner.forward(RaggedBatch([Segment(handle, token_ids)])).logits[0]
        runner.close(handle)
        return logits.softmax(-1).numpy()

    total = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for first, p in enumerate(after(prompt)):
        for second, q in enumerate(after([*prompt, first])):
            total[second] += p * q * after([*prompt, first, second])
    return total


@pytest.mark.parametrize(
    ("drafter", "view"),
    [
        ("ngram:min_size=1", None),
        ("auxiliary", None),
        ("rapid:num_tokens=12,chunk_size=4,query_size=5", None),
        ("sparse_self:lookup=2", VIEW),
        ("hierarchical:inner_k=2", VIEW),
        ("hierarchical:inner=auxiliary,inner_k=2", VIEW),
    ],
)
def test_rejection_keeps_the_targets_law(
    runner: Runner,
    assets: Assets,
    prompt: list[int],
    law: np.ndarray,
    drafter: str,
    view: str | None,
) -> None:
    engine = Engine(runner, decode, assets=assets)
    method = Method("test", drafter, view, "fixed:k=3", "rejection")
    counts = np.zeros_like(law)
    num_drafted = num_accepted = 0
    base = engine.open(prompt, PARAMS, method)
    for seed in range(NUM_TEXTS):
        handle = runner.fork(base.handle, len(prompt) - 1, engine.statistics(method))
        text = engine.open(prompt, PARAMS, method, seed=seed, handle=handle)
        while not text.is_finished:
            engine.round([text])
        counts[tuple(text.output_ids[1:3])] += 1
        num_drafted += text.stats.drafted
        num_accepted += text.stats.accepted
        runner.close(text.handle)
    runner.close(base.handle)
    assert 0 < num_accepted < num_drafted
    common = law * NUM_TEXTS >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(law[common], law[~common].sum()) * NUM_TEXTS
    assert stats.chisquare(observed, expected).pvalue > 1e-3
