"""Drafting with guesses: the drafts are those of one step a token, in fewer steps."""

from __future__ import annotations

import pytest

from glimpse.config import Method, SamplingParams
from glimpse.drafters import drafters
from glimpse.drafters.guesses import Guesses
from glimpse.engine import Engine
from glimpse.types import DENSE, GLIMPSE, KVView, RaggedBatch, Runner
from tests.tiny import decode, prompts, tiny_runner

GREEDY = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.3)
VIEW = "verification:budget=0.05,min_budget=8,sink_size=1,recent_size=3,window=4"


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner(vocab_size=11)


class Counting:
    """A runner that counts passes through the glimpse, and the tokens they read."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.num_steps = self.num_tokens = 0

    def __getattr__(self, name: str):
        return getattr(self._runner, name)

    def forward(self, batch: RaggedBatch, view: KVView = DENSE, hidden_layers=()):
        if view == GLIMPSE:
            self.num_steps += 1
            self.num_tokens += len(batch.token_ids)
        return self._runner.forward(batch, view, hidden_layers)


def run(runner: Runner, lookup: int, params: SamplingParams, acceptance: str, lengths):
    """Texts, drafted and accepted counts, passes and tokens read, of prompts that repeat."""
    counting = Counting(runner)
    engine = Engine(counting, decode)
    method = Method("t", f"sparse_self:lookup={lookup}", VIEW, "fixed:k=5", acceptance)
    texts = [engine.open(3 * ids, params, method, seed=3) for ids in prompts(runner, lengths)]
    while running := [text for text in texts if not text.is_finished]:
        engine.round(running)
    for text in texts:
        runner.close(text.handle)
    counts = [(text.stats.drafted, text.stats.accepted) for text in texts]
    return [text.output_ids for text in texts], counts, counting


@pytest.mark.parametrize(
    ("params", "acceptance"),
    [(GREEDY, "auto"), (SAMPLED, "coupled"), (SAMPLED, "rejection")],
    ids=["greedy", "coupled", "rejection"],
)
@pytest.mark.parametrize("lengths", [(20,), (20, 9, 14)])
def test_guesses_change_no_draft_and_save_steps(
    runner: Runner, lengths, params: SamplingParams, acceptance: str
) -> None:
    texts, counts, slow = run(runner, 0, params, acceptance, lengths)
    same_texts, same_counts, fast = run(runner, 4, params, acceptance, lengths)
    assert same_texts == texts
    assert same_counts == counts
    assert fast.num_steps <= slow.num_steps - (len(lengths) == 1)
    assert fast.num_tokens > slow.num_tokens  # some guesses were wrong


def test_no_more_is_read_than_may_be_drafted(runner: Runner) -> None:
    guesses = Guesses(9)
    assert guesses.guess([1, 2, 3, 1, 2], [], 0) == []
    assert guesses.guess([1, 2, 3, 1, 2], [], 2) == [3, 1]


def test_as_many_are_guessed_as_are_likely_to_be_confirmed() -> None:
    guesses, text = Guesses(16), [1, 2, 3, 4] * 9
    assert len(guesses.guess(text, [], 99)) == 3  # half of them: 0.5 ** 3 is above a row's cost
    for _ in range(60):
        guesses.learn(True)
    assert len(guesses.guess(text, [], 99)) == 16
    for _ in range(60):
        guesses.learn(False)
    assert len(guesses.guess(text, [], 99)) == 1


def test_a_negative_number_of_guesses_is_refused() -> None:
    with pytest.raises(ValueError, match="lookup=-1: must be at least 0"):
        drafters.build("sparse_self:lookup=-1")
