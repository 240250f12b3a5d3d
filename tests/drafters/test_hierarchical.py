"""The middle level: its tokens are the glimpse's own, whatever the inner level proposes."""

from __future__ import annotations

import pytest

from glimpse.config import Method, SamplingParams
from glimpse.drafters import Assets, drafters
from glimpse.engine import Engine
from glimpse.types import DENSE, GLIMPSE, KVView, RaggedBatch, Runner
from tests.tiny import decode, prompts, tiny_runner

VIEW = "verification:budget=0.05,min_budget=8,sink_size=1,recent_size=3,window=4"


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner(vocab_size=11)


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets(tiny_runner(vocab_size=11, num_layers=2))


class Counting:
    """A runner that counts its passes through the glimpse."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.num_steps = 0

    def __getattr__(self, name: str):
        return getattr(self._runner, name)

    def forward(self, batch: RaggedBatch, view: KVView = DENSE, hidden_layers=()):
        self.num_steps += view == GLIMPSE
        return self._runner.forward(batch, view, hidden_layers)


def run(runner: Runner, assets: Assets, drafter: str, params: SamplingParams):
    """The drafts of every round, and the passes through the glimpse."""
    counting = Counting(runner)
    engine = Engine(counting, decode, assets=assets)
    method = Method("t", drafter, VIEW, "fixed:k=5")
    (prompt,) = prompts(runner, (20,))
    sequence = engine.open(prompt * 2, params, method, seed=4)
    drafts, num_passes = [], 0
    while not sequence.is_finished:
        (outcome,) = engine.round([sequence])
        drafts.append((outcome.draft.token_ids, outcome.draft.signals))
        num_passes += outcome.draft.num_passes or len(outcome.draft)
    runner.close(sequence.handle)
    assert num_passes == counting.num_steps
    return drafts, counting.num_steps


@pytest.mark.parametrize("inner", ["ngram", "auxiliary"])
@pytest.mark.parametrize("temperature", [0.0, 0.5], ids=["greedy", "coupled"])
def test_drafts_are_those_of_the_glimpse_in_fewer_passes(
    runner: Runner, assets: Assets, inner: str, temperature: float
) -> None:
    params = SamplingParams(max_tokens=30, temperature=temperature)
    expected, slow = run(runner, assets, "sparse_self:lookup=0", params)
    drafts, fast = run(runner, assets, f"hierarchical:inner={inner},inner_k=3", params)
    assert [ids for ids, _ in drafts] == [ids for ids, _ in expected]
    for (_, signals), (_, others) in zip(drafts, expected, strict=True):
        assert [s.entropy for s in signals] == pytest.approx([s.entropy for s in others])
    assert fast < slow


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="inner_k=0"):
        drafters.build("hierarchical:inner_k=0")
    with pytest.raises(ValueError, match="inner='deep'"):
        drafters.build("hierarchical:inner=deep")
