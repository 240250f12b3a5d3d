"""``glimpse bench peers`` as a user types it, with engines that compute nothing."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from glimpse.bench import peer_runs, report
from glimpse.bench.report import section
from glimpse.cli import main, options
from tests.bench.fakes import FakePeer


def glimpse(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["glimpse", "bench", *arguments])
    monkeypatch.setenv("COLUMNS", "80")
    main()


def test_peers_writes_raw_results_and_prints_a_table(
    monkeypatch, capsys, tmp_path, smollm2_files
) -> None:
    run = partial(peer_runs.run, start=lambda row, setup: FakePeer())
    monkeypatch.setattr(peer_runs, "run", run)
    monkeypatch.setattr(peer_runs, "read_bandwidth", lambda threads: 1e10)
    with pytest.raises(SystemExit) as ended:
        glimpse(monkeypatch, "peers", "--context", "128", "--temperature", "0", "--repeats", "2",
                "--peer", "transformers", "--output", str(tmp_path), "--json")  # fmt: skip
    assert ended.value.code == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert any("transformers lookup" in line and "1.00x" in line for line in table)
    assert max(map(len, table)) <= 80
    (condition,) = json.loads(last)["conditions"]
    assert (condition["context"], condition["temperature"]) == (128, 0.0)
    assert condition["rows"][0]["decode_tokens_per_s"] == 10.0
    lines = (tmp_path / "peers.jsonl").read_text("utf-8").splitlines()
    first, *records = map(json.loads, lines)
    assert "provenance" in first
    assert "### 128 tokens of context, greedy" in section(records)


def test_options_of_peers_are_refused_elsewhere(monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        glimpse(monkeypatch, "plain", "--context", "256", "--threads", "2")
    assert ended.value.code == 2
    assert "experiment 'plain' has no contexts, threads; it has: no options" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["batch", "--documents", "2"], "has no documents; it has: max_tokens, repeats, threads"),
        (["contexts", "--documents", "9"], "documents=9: must be from 1 to 5"),
        (["controller", "--repeats", "0"], "repeats=0: must be at least 1"),
        (["nonsense"], "unknown experiment 'nonsense'; valid: acceptance, controller, contexts"),
    ],
)
def test_what_cannot_be_run_is_said_before_a_model_is_loaded(
    monkeypatch, capsys, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(options, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit) as ended:
        glimpse(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_report_names_the_result_that_was_never_filled(monkeypatch, tmp_path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"provenance": {}}\n', "utf-8")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"plain\.jsonl: holds no results"):
        report.main()
