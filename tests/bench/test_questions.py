"""A dialogue about one document, with engines that compute nothing."""

from __future__ import annotations

import pytest

from glimpse.bench import questions
from glimpse.bench.peers.catalogue import PEERS
from glimpse.bench.questions import QuestionBench, cells, missing, prompts, rows, run
from glimpse.bench.report import section
from glimpse.models import load_tokenizer
from tests.bench.fakes import FakePeer

BENCH = QuestionBench("smollm2-135m", context=60, max_tokens=11, num_questions=2)
SPEEDS = {"glimpse plain": 20.0, "glimpse sparsespec-l": 40.0, "openvino plain": 10.0}


@pytest.fixture
def records(monkeypatch, smollm2_files) -> list[dict]:
    monkeypatch.setattr(questions.Row, "how_to_install", None)
    fails = "llama-cpp flash"

    def start(row, setup) -> FakePeer:
        assert setup.keeps_prefix
        return FakePeer(SPEEDS.get(row.name, 5.0), fails_at=2 if row.name == fails else -1)

    return list(run(BENCH, start))


def test_all_answers_of_an_engine_are_one_total(records) -> None:
    found = {row.name: row for row in rows(records)}
    own, best = found["glimpse sparsespec-l"], found["openvino plain"]
    # Ten tokens after the first, at the engine's speed; a millisecond for each of the prompt's.
    reading = sum(map(len, prompts(BENCH, load_tokenizer(questions.resolve(BENCH.model))))) / 1000
    assert own.total_s == pytest.approx(2 * 10 / 40 + reading)
    assert own.over_best_peer == pytest.approx(best.total_s / own.total_s)
    assert best.over_best_peer == 1.0
    assert own.num_same_tokens == 22


def test_engines_that_cannot_keep_a_document_take_no_part(records) -> None:
    asked = {record["engine"] for record in records[1:]}
    expected = {row.name for row in PEERS if row.engine != "transformers"}
    assert asked == {"glimpse plain", "glimpse sparsespec-l", *expected}


def test_one_that_fails_is_named_and_has_no_row(records) -> None:
    assert missing(records) == [("llama-cpp flash", "failed: fake: out of tokens")]
    assert "llama-cpp flash" not in {row.name for row in rows(records)}
    assert cells(records)[1][-1] == ["llama-cpp flash", *["-"] * 5]
    assert "- llama-cpp flash: failed: fake: out of tokens" in section(records)


def test_questions_share_the_document(smollm2_files) -> None:
    first, second = prompts(BENCH, load_tokenizer(smollm2_files))
    same = next(i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert same > 60


@pytest.mark.parametrize("wrong", [{"context": 0}, {"max_tokens": 2}, {"threads": 0}])
def test_sizes_that_make_no_sense(wrong) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        QuestionBench("smollm2-135m", **wrong)
