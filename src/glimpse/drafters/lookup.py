"""Prompt lookup: what followed the last few tokens of a text when they last occurred."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

MIN_SIZE, MAX_SIZE = 2, 3
"""Tokens that are looked up: three, or else two (Saxena 2023)."""


class Lookup:
    """Where each run of ``min_size`` to ``max_size`` tokens of one text was last followed.

    Nothing is searched: each token enters the index once, and looking up costs what is copied.
    """

    def __init__(self, min_size: int = MIN_SIZE, max_size: int = MAX_SIZE) -> None:
        self._max_size = max_size
        self._positions: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in range(max_size, min_size - 1, -1)
        }
        self._num_read = 0

    def follow(
        self, token_ids: SequenceOf[int], draft_ids: SequenceOf[int], num_tokens: int
    ) -> list[int]:
        """Up to ``num_tokens`` that may come after ``token_ids`` and a draft: those that followed
        the latest earlier occurrence of the longest run that ends them; empty if there is none.

        ``token_ids`` must go on from those of the last call; a draft leaves no trace.
        """
        self._read(token_ids)
        source = self._find([*token_ids[-self._max_size :], *draft_ids])
        if source is None:
            return []
        copied: list[int] = []
        num_known, num_drafted = len(token_ids), len(draft_ids)
        for position in range(source, source + num_tokens):
            beyond = position - num_known
            if beyond < 0:
                copied.append(token_ids[position])
            elif beyond < num_drafted:
                copied.append(draft_ids[beyond])
            else:  # the end of all there is: on into what was copied
                copied.append(copied[beyond - num_drafted])
        return copied

    def _read(self, token_ids: SequenceOf[int]) -> None:
        end = len(token_ids)
        for size, positions in self._positions.items():
            # The run at the very end has no follower yet.
            for follower in range(max(self._num_read, size), end):
                positions[tuple(token_ids[follower - size : follower])] = follower
        self._num_read = end

    def _find(self, last: list[int]) -> int | None:
        """The position after the latest occurrence of a run that ``last`` ends with."""
        for size, positions in self._positions.items():
            if len(last) >= size and (found := positions.get(tuple(last[-size:]))) is not None:
                return found
        return None
