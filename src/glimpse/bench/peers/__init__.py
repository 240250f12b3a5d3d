"""Other engines on the same model, prompt and threads, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol, Self


@dataclass(frozen=True)
class Measurement:
    """One generation: seconds of prefill up to the first token, seconds of the tokens after it."""

    prefill_s: float
    decode_s: float
    token_ids: list[int]

    @property
    def decode_tokens_per_s(self) -> float:
        return (len(self.token_ids) - 1) / self.decode_s


class Peer(Protocol):
    """An engine with its model loaded."""

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> Measurement:
        """Greedy text of exactly ``max_tokens`` tokens."""


class PeerProcess:
    """A peer in a spawned process, so that its memory and its threads are its own.

    ``load`` is called there, with ``arguments``; what it raises is raised here as RuntimeError.
    """

    def __init__(self, name: str, load: Callable[..., Peer], *arguments: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, load, arguments), daemon=True)
        self._process.start()
        other.close()
        self._receive()

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> Measurement:
        self._connection.send((list(prompt_ids), max_tokens))
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


def _serve(connection: Connection, load: Callable[..., Peer], arguments: tuple[Any, ...]) -> None:
    """Answer (prompt, max_tokens) with a Measurement, None with the peak memory; until closed."""
    try:
        peer = load(*arguments)
        connection.send((True, None))
        while True:
            request = connection.recv()
            if request is None:
                # Linux counts ru_maxrss in KiB.
                connection.send((True, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
            else:
                connection.send((True, peer.generate(*request)))
    except EOFError:
        return
    except Exception:
        connection.send((False, traceback.format_exc(limit=-3)))
