"""Recallable pages, by the bounding box of their keys."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import selections
from glimpse.selection.quest import Quest


@selections.register
@dataclass
class Arkvale(Quest):
    """ArkVale (Chen et al. 2024, NeurIPS 37) over a resident cache: every page can be recalled.

    Pages of 32 positions, ranked at each step by the bounding box of their keys, its cuboid digest;
    two sink pages and two recent ones always, no dense layers: the official code's defaults. What
    the method adds to Quest, a slower tier that pages are fetched from, has no place here.
    """

    min_budget: int = 256
    sink_size: int = 64
    page_size: int = 32
    num_dense_layers: int = 0
    num_recent_pages: int = 2
