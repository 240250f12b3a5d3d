"""Keeps the KV of recent texts, so that a prompt that begins like one of them is not read again."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from glimpse.types import Runner, Sequence, Statistics


def common_length(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """Number of leading tokens that two texts share."""
    n = min(len(a), len(b))
    differs = np.asarray(a[:n]) != np.asarray(b[:n])
    return int(differs.argmax()) if differs.any() else n


class PrefixCache:
    """The KV of the last ``capacity`` finished texts, least recently used first out."""

    def __init__(self, runner: Runner, capacity: int = 1) -> None:
        if capacity < 0:
            raise ValueError(f"capacity={capacity}: must be at least 0 texts")
        self.capacity = capacity
        self._runner = runner
        self._texts: list[tuple[int, list[int]]] = []

    def take(
        self,
        prompt_ids: SequenceOf[int],
        statistics: Statistics,
        running: SequenceOf[Sequence],
        capacity: int = 0,
    ) -> int | None:
        """KV with a beginning of the prompt, or None: of a kept text, or a running one's fork.

        It has room for ``capacity`` tokens.

        The last ``window`` shared positions are left out, to be read again: attention statistics
        come from the queries of the last tokens, and so equal those of a cold start. Cumulative
        statistics come from every query: there is nothing to begin with.
        """
        if statistics.is_cumulative:
            return None
        kept = [
            (common_length(tokens, prompt_ids), tokens, handle) for handle, tokens in self._texts
        ]
        live = [
            (common_length(sequence.token_ids[:-1], prompt_ids), None, sequence.handle)
            for sequence in running
        ]
        shared, tokens, handle = max(
            [*kept, *live], key=lambda found: found[0], default=(0, None, 0)
        )
        length = min(shared, len(prompt_ids) - 1) - statistics.window
        if length <= 0:
            return None
        fork = self._runner.fork(handle, length, statistics, capacity)
        if tokens is not None:
            self._texts.remove((handle, tokens))
            self._runner.close(handle)
        return fork

    def put(self, handle: int, token_ids: SequenceOf[int]) -> None:
        """Take over KV that nobody needs any more; it holds a beginning of ``token_ids``."""
        self._texts.append((handle, list(token_ids[: self._runner.length(handle)])))
        while len(self._texts) > self.capacity:
            self._runner.close(self._texts.pop(0)[0])

    def clear(self) -> None:
        while self._texts:
            self._runner.close(self._texts.pop()[0])
