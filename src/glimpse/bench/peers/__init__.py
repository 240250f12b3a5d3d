"""Other engines on the same model, prompt and threads, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import resource
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self


@dataclass(frozen=True)
class Request:
    """Generate exactly ``max_tokens`` tokens; temperature 0 is greedy, no other filter applies."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Measurement:
    """One generation: seconds up to the first token, prefill included, and of the tokens after it.

    ``drafted`` and ``accepted`` are None where the engine does not speculate or does not say.
    """

    ttft_s: float
    decode_s: float
    token_ids: list[int]
    drafted: int | None = None
    accepted: int | None = None

    @property
    def decode_tokens_per_s(self) -> float:
        return (len(self.token_ids) - 1) / self.decode_s


class Peer(Protocol):
    """An engine with its model loaded, which keeps nothing of a prompt for the next request."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Version, threads, precision and what else decides its speed."""

    def generate(self, request: Request) -> Measurement: ...


class PeerProcess:
    """A peer in a spawned process, so that its memory and its threads are its own.

    ``load`` is called there, with ``arguments``; what it raises is raised here as RuntimeError.
    ``threads``, where given, is what its OpenMP libraries find in their environment.
    """

    def __init__(
        self, name: str, load: Callable[..., Peer], *arguments: Any, threads: int | None = None
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, load, arguments), daemon=True)
        # OpenMP reads its environment once, when the child imports the first library that has it.
        with _environment({} if threads is None else {"OMP_NUM_THREADS": str(threads)}):
            self._process.start()
        other.close()
        self.settings: Mapping[str, Any] = self._receive()

    def generate(self, request: Request) -> Measurement:
        self._connection.send(request)
        measurement = self._receive()
        assert isinstance(measurement, Measurement)
        return measurement

    def peak_memory(self) -> int:
        """Largest resident size so far, in bytes."""
        self._connection.send(None)
        return int(self._receive())

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self) -> Any:
        try:
            is_good, value = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process ended") from None
        if not is_good:
            raise RuntimeError(f"{self.name}: {value}")
        return value


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, load: Callable[..., Peer], arguments: tuple[Any, ...]) -> None:
    """Say the settings, then answer Requests with Measurements, None with the peak memory."""
    try:
        peer = load(*arguments)
        connection.send((True, dict(peer.settings)))
        while True:
            request = connection.recv()
            if request is None:
                # Linux counts ru_maxrss in KiB.
                connection.send((True, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
            else:
                connection.send((True, peer.generate(request)))
    except EOFError:
        return
    except Exception:
        connection.send((False, traceback.format_exc(limit=-3)))
