"""Stop when the draft's own entropy says that a rejection is likely."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glimpse.controllers import StoppingRule, controllers
from glimpse.types import Draft, Sequence


@controllers.register
@dataclass
class Svip(StoppingRule):
    """SVIP (Zhang et al. 2024, arXiv 2411.18462): draft on while sqrt(c H) is at most a threshold.

    The root of c times the draft's entropy H bounds how far its law may be from the target's. The
    paper's c = 0.15, threshold 0.3 and at most 40 tokens.
    """

    max_k: int = 40
    coefficient: float = 0.15
    threshold: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("coefficient", "threshold"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}={value}: must be above 0")

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:  # noqa: ARG002
        entropy = max(0.0, draft.signals[-1].entropy)
        return math.sqrt(self.coefficient * entropy) <= self.threshold
