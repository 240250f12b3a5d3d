"""The experiment's logic with engines that compute nothing."""

from __future__ import annotations

import pytest

from glimpse.bench import peer_runs
from glimpse.bench.peer_runs import PeerBench, prompt_of, run
from glimpse.bench.peers.catalogue import Row
from glimpse.models import load_tokenizer
from tests.bench.fakes import FakePeer

ROWS = (
    Row("quick", "fake", ("pytest",)),
    Row("absent", "fake", ("no-such-engine-1", "pytest", "no-such-engine-2")),
)


@pytest.fixture
def bench(monkeypatch, smollm2_files) -> PeerBench:
    """Two conditions, two repeats; the machine's bandwidth is not measured."""
    monkeypatch.setattr(peer_runs, "chosen", lambda names: ROWS)
    monkeypatch.setattr(peer_runs, "read_bandwidth", lambda threads: 1e9 * threads)
    return PeerBench("smollm2-135m", contexts=(100, 200), temperatures=(0.0,), max_tokens=5,
                     repeats=2)  # fmt: skip


def test_runs_are_interleaved_and_what_is_absent_is_named(bench) -> None:
    steps: list[tuple[int, int]] = []
    first, *records, last = run(
        bench, lambda row, setup: FakePeer(), lambda *step: steps.append(step)
    )
    present = ["glimpse plain", "glimpse sparsespec-l", "quick"]
    assert [engine["name"] for engine in first["engines"]] == [*present, "absent"]
    assert first["engines"][3]["missing"] == (
        "not installed: pip install no-such-engine-1 no-such-engine-2"
    )
    measured = [record for record in records if "engine" in record]
    assert [(r["context"], r["repeat"], r["engine"]) for r in measured] == [
        (context, repeat, name)
        for context in (100, 200)
        for repeat, names in enumerate((present, [*present[1:], present[0]]))
        for name in names
    ]
    assert [r["ttft_s"] for r in measured] == [0.1] * 6 + [0.2] * 6
    assert [r for r in records if "bandwidth" in r] == [{"bandwidth": 2e9}] * 4
    assert steps == [(i, 12) for i in range(1, 13)]
    assert last == {"peak_memory": dict.fromkeys(present, 2**30)}


def test_an_engine_that_fails_on_the_way_is_left_out_from_there(bench) -> None:
    records = list(run(bench, lambda row, setup: FakePeer(fails_at=2 * (row.name == "quick"))))
    quick = [record for record in records if record.get("engine") == "quick"]
    assert quick[0]["token_ids"] == [0, 1, 2, 3, 4]
    assert quick[1]["error"] == "fake: out of tokens"
    assert len(quick) == 2
    assert sum("token_ids" in record for record in records) == 9


def test_an_engine_that_does_not_start_is_named_but_ours_must(bench) -> None:
    def start(failing: str):
        def start(row, setup):
            if row.name == failing:
                raise RuntimeError(f"{failing}: no luck")
            return FakePeer()

        return start

    assert next(run(bench, start("quick")))["engines"][2]["missing"] == "failed: quick: no luck"
    with pytest.raises(RuntimeError, match="glimpse plain: no luck"):
        next(run(bench, start("glimpse plain")))


def test_every_engine_needs_room_for_the_longest_text(bench) -> None:
    seen = []
    next(run(bench, lambda row, setup: seen.append(setup) or FakePeer()))
    assert {(setup.threads, setup.max_length) for setup in seen} == {(2, 205)}


@pytest.mark.parametrize("length", [128, 256, 2048, 7400])
def test_a_prompt_has_exactly_the_length_asked_for(smollm2_files, length: int) -> None:
    tokenizer = load_tokenizer(smollm2_files)
    token_ids = prompt_of(length, tokenizer)
    assert len(token_ids) == length
    assert "Explain three of them" in tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contexts": (20,)}, "context=20: too short"),
        ({"repeats": 0}, "repeats=0: must be at least 1"),
        ({"max_tokens": 2}, "max_tokens=2: must be at least 3"),
        ({"threads": 0}, "threads=0: must be at least 1"),
        ({"temperatures": (0.0, float("nan"))}, "temperature=nan"),
        ({"runner": "abacus"}, "unknown runner 'abacus'"),
        ({"peers": ("abacus",)}, "unknown peer 'abacus'; valid: llama-cpp flash, "),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(options, words: str) -> None:
    started = []
    with pytest.raises(ValueError, match=words):
        next(run(PeerBench("smollm2-135m", **options), lambda row, setup: started.append(row)))
    assert started == []


def test_a_model_that_is_not_gguf_is_refused(tiny_checkpoint) -> None:
    with pytest.raises(ValueError, match="is not a GGUF file"):
        next(run(PeerBench(str(tiny_checkpoint("llama", has_tokenizer=True)))))
