"""``glimpse plan``: a table, JSON and a figure; bad ranges are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from glimpse.cli import main
from glimpse.cli.plan import parse_contexts, parse_sizes


def plan(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["glimpse", "plan", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code


def test_json_has_a_row_for_each_context_and_batch(monkeypatch, capsys) -> None:
    assert plan(monkeypatch, "--context", "4k:16k", "--batch", "1,4", "--json") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = result["rows"]
    assert [(row["batch"], row["context"]) for row in rows] == [
        (batch, context) for batch in (1, 4) for context in (4096, 8192, 16384)
    ]
    assert rows[-1]["speedup"] > rows[0]["speedup"] > 0.999
    assert all(row["limit"] >= row["speedup"] for row in rows)


def test_the_table_and_the_figure(monkeypatch, capsys, tmp_path: Path) -> None:
    figure = tmp_path / "plan.png"
    options = ("-m", "smollm2-135m", "--machine", "h200", "--context", "2k,8k", "--batch", "1")
    assert plan(monkeypatch, *options, "--plot", str(figure)) == 0
    assert "speed-up" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_models_own_config_and_this_machine(monkeypatch, capsys, tiny_checkpoint) -> None:
    folder = str(tiny_checkpoint("qwen3", max_position_embeddings=8192))
    options = ("-m", folder, "--machine", "this", "--context", "1k", "--batch", "1", "--json")
    assert plan(monkeypatch, *options) == 0
    shown = capsys.readouterr()
    assert "measuring this machine" in shown.err
    assert len(json.loads(shown.out.splitlines()[-1])["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "warp"), "presets: smollm2-135m"),
        (("--machine", "warp"), "unknown machine 'warp'; valid: a40"),
        (("--weights", "int3"), "unknown precision 'int3'"),
        (("--context", "64k:4k"), "context='64k:4k'"),
        (("--context", "none"), "context='none'"),
        (("--context", "256k"), "context=262144: llama-3.1-8b has a context of 131072"),
        (("--batch", "0"), "batch='0'"),
        (("--budget", "0"), "budget=0"),
        (("--acceptance", "1.5"), "acceptance=1.5"),
        (("--kv-traffic", "0.5"), "kv_traffic=0.5"),
        (("--max-k", "0"), "max-k"),
        (("--plot", "plan.xyz"), "the suffix must be one of"),
    ],
)
def test_bad_input_is_one_clear_line(monkeypatch, capsys, arguments, words: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert plan(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert words in " ".join(shown.err.split())
    assert shown.out == ""


def test_ranges_double_and_lists_are_as_given() -> None:
    assert parse_contexts("4k:20k") == [4096, 8192, 16384]
    assert parse_contexts("8k,60k") == [8192, 61440]
    assert parse_sizes("1, 2k", "batch") == [1, 2048]
