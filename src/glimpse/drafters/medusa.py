"""Heads beside the target's own, each for a token further ahead."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch.nn.functional as F
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.drafters import Assets, Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.companion import add_token
from glimpse.types import Draft, Runner, Sequence


@drafters.register
@dataclass
class Medusa(Drafter):
    """Medusa (Cai et al. 2024, arXiv 2401.10774): head i reads what the target's own head read and
    names the token i + 1 places after the one that it chose.

    head_i(x) = W_i2 (x + SiLU(W_i1 x + b_i)), five of them in the official checkpoints. The drafts
    are a chain, not the paper's tree, and are checked by ordinary acceptance: the paper's typical
    acceptance changes what is sampled.
    """

    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._last: WeakKeyDictionary[Sequence, Tensor] = WeakKeyDictionary()

    @property
    def needs_head(self) -> str | None:
        return "medusa"

    def attach(self, assets: Assets) -> None:
        if assets.head is not None:
            self._tensors = dict(assets.head.tensors)
            self._num_heads = len(self._tensors) // 3

    def hidden_layers(self, config: ModelConfig) -> tuple[int, ...]:
        return (config.num_layers,)

    def observe(self, sequence: Sequence, hidden: Mapping[int, Tensor]) -> None:
        self._last[sequence] = hidden[max(hidden)][-1:].clone()

    def draft(
        self,
        runner: Runner,  # noqa: ARG002
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        drafts = [Draft() for _ in sequences]
        for sequence, cap, draft in zip(sequences, caps, drafts, strict=True):
            for number in range(min(cap, self._num_heads)):
                row = self.logits(number, self._last[sequence])[0]
                add_token(sequence, draft, row, propose)
                if not keep_drafting(sequence, draft):
                    break
        return drafts

    def logits(self, number: int, x: Tensor) -> Tensor:
        """A head's logits [rows, vocab_size] for what the target's own head read."""
        weight, bias, out = (
            self._tensor(f"{number}.{name}", x)
            for name in ("0.linear.weight", "0.linear.bias", "1.weight")
        )
        return F.linear(x + F.silu(F.linear(x, weight, bias)), out)

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        """A weight where the hidden states are, and as precise; moved once."""
        self._tensors[name] = self._tensors[name].to(like)
        return self._tensors[name]
