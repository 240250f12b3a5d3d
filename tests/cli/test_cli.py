"""Commands as a user types them: results, errors as one line with exit code 2, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glimpse.cli import main

COMMAND = [sys.executable, "-W", "error", "-m", "glimpse"]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint) -> str:
    return str(tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=512))


def glimpse(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, input=stdin, env=environment
    )


def last_json(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_generate_reports_text_and_statistics(folder: str, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("Some facts. " * 8)
    done = glimpse(
        "generate", "-m", folder, "--file", str(document), "--ask", "Which?", "--max-tokens", "8",
        "--controller", "fixed:k=3", "--json",
    )  # fmt: skip
    result = last_json(done)
    assert set(result) >= {"text", "token_ids", "finish_reason", "stats"}
    assert set(result["stats"]) >= {
        "prompt_tokens", "generated_tokens", "ttft_s", "prefill_s", "decode_s",
        "decode_tokens_per_s", "rounds", "drafted", "accepted", "acceptance_rate",
        "mean_accepted", "tokens_per_round", "mean_k", "runner", "method",
    }  # fmt: skip
    assert len(result["token_ids"]) == result["stats"]["generated_tokens"] == 8


def test_generate_streams_several_texts(folder: str) -> None:
    options = ("--temperature", "1", "--seed", "5", "-n", "2", "--max-tokens", "6")
    done = glimpse("generate", "-m", folder, "--prompt", "Once", *options)
    assert done.returncode == 0, done.stderr
    assert "--- 2 ---" in done.stdout
    assert "seed 5" in done.stderr
    result = last_json(glimpse("generate", "-m", folder, "--prompt", "Once", *options, "--json"))
    for text in (result["text"], result["others"][0]["text"]):
        assert text.replace("\r", "\n") in done.stdout  # the pipe's own newlines


def test_compare_checks_tokens_and_adds_the_baseline(folder: str, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("Some facts. " * 8)
    done = glimpse(
        "compare", "-m", folder, "--file", str(document), "--ask", "Which?", "--ask", "Why?",
        "--methods", "sparsespec-l,streaming,full", "--max-tokens", "8", "--repeats", "2",
        "--dtype", "float64", "--controller", "fixed:k=2", "--json",
    )  # fmt: skip
    methods = last_json(done)["methods"]
    assert list(methods) == ["autoregressive", "sparsespec-l", "streaming", "full"]
    assert methods["autoregressive"]["speedup"] == 1.0
    assert all(row["identical_tokens"] for row in methods.values())
    assert methods["full"]["acceptance_rate"] == 1.0
    assert methods["sparsespec-l"]["generated_tokens"] == 16


def test_compare_shows_a_table_and_the_texts(folder: str) -> None:
    done = glimpse(
        "compare", "-m", folder, "--prompt", "Once", "--max-tokens", "6", "--show-text",
        "--repeats", "1", "--dtype", "float64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(the same text)" in done.stdout
    assert "speed-up" in done.stdout


def test_chat_answers_from_a_pipe(folder: str, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("Some facts. " * 8)
    done = glimpse(
        "chat", "-m", folder, "--file", str(document), "--max-tokens", "5",
        stdin="Which?\n\nAnd why?\n/quit\nnever read\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokens/s") == 2


def test_methods_lists_everything() -> None:
    listed = last_json(glimpse("methods", "--json"))
    assert listed["methods"]["sparsespec-l"]["runners"] == ["native", "torch"]
    assert listed["selection"]["verification"]["window"] == 16
    shown = glimpse("methods").stdout
    for name in ("sparsespec-l", "verification", "sparse_self", "efficiency", "coupled"):
        assert name in shown


def test_doctor_names_the_machine_and_the_versions() -> None:
    facts = last_json(glimpse("doctor", "--json"))
    assert facts["machine"]["cores"] == os.cpu_count()
    assert facts["versions"]["torch"]
    assert facts["runners"]["auto"] in facts["runners"]


def bad(tmp_path: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("naïve".encode("latin-1"))
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(b"GGUF\x03\x00\x00\x00")
    long = tmp_path / "long.txt"
    long.write_text("word " * 600)
    return {
        "no such model": (("-m", "no-such-model", "--prompt", "x"), "no-such-model"),
        "hub id offline": (("-m", "no/such-model", "--prompt", "x"), "no/such-model"),
        "truncated model": (("-m", str(truncated), "--prompt", "x"), "truncated.gguf"),
        "no prompt": ((), "nothing to do"),
        "empty prompt": (("--prompt", ""), "empty"),
        "two prompts": (("--prompt", "x", "--ask", "y"), "--prompt"),
        "no such file": (("--file", "no-such-file"), "no-such-file"),
        "not UTF-8": (("--file", str(latin)), "not UTF-8 text (byte 0xef at offset 2)"),
        "too long": (("--file", str(long)), "more than fit"),
        "method": (("--prompt", "x", "--method", "warp"), "unknown method 'warp'"),
        "selection": (("--prompt", "x", "--selection", "warp"), "unknown selection 'warp'"),
        "key": (("--prompt", "x", "--selection", "full:x=1"), "no option 'x'"),
        "budget 0": (("--prompt", "x", "--budget", "0"), "budget=0"),
        "budget 2": (("--prompt", "x", "--budget", "2"), "budget=2"),
        "NaN": (("--prompt", "x", "--temperature", "nan"), "temperature=nan"),
        "runner": (("--prompt", "x", "--runner", "warp"), "unknown runner 'warp'"),
        "device": (("--prompt", "x", "--device", "warp"), "warp"),
        "dtype": (("--prompt", "x", "--dtype", "int3"), "int3"),
        "option": (("--prompt", "x", "--wrap"), "--wrap"),
        "tokens": (("--prompt", "x", "--max-tokens", "0"), "max_tokens=0"),
    }


@pytest.mark.parametrize("name", bad(Path("/tmp")).keys())
def test_bad_input_is_one_clear_line(
    folder: str, tmp_path: Path, name: str, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, words = bad(tmp_path)[name]
    if "-m" not in arguments:
        arguments = ("-m", folder, *arguments)
    monkeypatch.setattr(sys, "argv", ["glimpse", "generate", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as raised:
        main()
    shown = capsys.readouterr()
    assert raised.value.code == 2
    assert words in " ".join(shown.err.split())
    assert shown.out == ""


def test_an_error_shows_no_traceback() -> None:
    done = glimpse("generate", "--prompt", "x", "--budget", "0")
    assert done.returncode == 2
    assert done.stderr == "error: budget=0.0: must be above 0 and at most 1\n"


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_an_interrupt_keeps_what_was_generated(tiny_checkpoint, options: tuple[str, ...]) -> None:
    folder = str(tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=262144))
    arguments = ("generate", "-m", folder, "--prompt", "Once", "--max-tokens", "200000",
                 "--min-tokens", "200000", *options)  # fmt: skip
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    if options:
        time.sleep(15)  # Nothing is shown before the end: long enough to have begun.
        begun = ""
    else:
        begun = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    if options:
        result = json.loads(rest.splitlines()[-1])
        assert result["finish_reason"] == "abort"
        assert 0 < len(result["token_ids"]) < 200000
    else:
        assert len(begun + rest) >= 20
