"""Tokens that are read together with a draft step, in the hope that the step confirms them."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

from glimpse.drafters.lookup import Lookup

ROW_COST = 0.1
"""What reading one more token adds to a draft step, about, as a share of the step: the weights are
read anyway. A guess that is confirmed saves a step, so one this likely is worth its row."""
KEEP = 0.9
"""What the rate of confirmed guesses keeps with each guess."""
LEAST_RATE, MOST_RATE = 0.05, 0.99


class Guesses:
    """Guesses by prompt lookup for one text: as many at once as are likely to pay, at most
    ``most``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lookup = Lookup()
        self._rate = 0.5

    def guess(self, token_ids: SequenceOf[int], draft_ids: SequenceOf[int], room: int) -> list[int]:
        """Up to ``room`` tokens that may follow a text and its draft."""
        num_tokens = min(room, self._most, self._num_worthwhile())
        return self._lookup.follow(token_ids, draft_ids, num_tokens) if num_tokens > 0 else []

    def learn(self, is_confirmed: bool) -> None:
        """What became of a guess whose predecessors were confirmed."""
        self._rate = KEEP * self._rate + (1 - KEEP) * is_confirmed

    def _num_worthwhile(self) -> int:
        """How many in a row are all confirmed with a probability of at least ``ROW_COST``; one at
        least, or nothing would be learnt.
        """
        rate = min(MOST_RATE, max(LEAST_RATE, self._rate))
        return max(1, int(math.log(ROW_COST) / math.log(rate)))
