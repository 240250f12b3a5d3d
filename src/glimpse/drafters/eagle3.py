"""A trained layer drafts from the target's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.drafters import Assets, Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.companion import add_token
from glimpse.drafters.eagle_head import EagleHead, HeadKV
from glimpse.prefill import CHUNK_SIZE
from glimpse.types import Draft, RaggedBatch, Runner, Segment, Sequence


@drafters.register
@dataclass
class Eagle3(Drafter):
    """EAGLE-3 (Li et al. 2025, arXiv 2503.01840): one layer over fused hidden states of the target.

    The features are the inputs of layers 2, N/2 and N - 3, as in the official code. A row joins the
    features of a position with the token after it. Drafts are a chain: each step feeds the layer's
    own output back. When a text first drafts, the target reads it once more for its features.
    """

    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._texts: WeakKeyDictionary[Sequence, _Text] = WeakKeyDictionary()

    @property
    def needs_head(self) -> str | None:
        return "eagle3"

    def attach(self, assets: Assets) -> None:
        if assets.head is not None:
            self._head = EagleHead(assets.head)

    def hidden_layers(self, config: ModelConfig) -> tuple[int, ...]:
        n = config.num_layers
        return tuple(min(n, max(0, layer)) for layer in (2, n // 2, n - 3))

    def observe(self, sequence: Sequence, hidden: Mapping[int, Tensor]) -> None:
        text = self._texts.get(sequence)
        if text is not None:
            text.features.append(torch.cat([hidden[layer] for layer in text.layers], -1))

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        drafts = [Draft() for _ in sequences]
        for sequence, cap, draft in zip(sequences, caps, drafts, strict=True):
            h = self._catch_up(runner, sequence)
            kv = self._texts[sequence].kv
            while True:
                row = self._head.logits(h, runner.config.vocab_size)
                add_token(sequence, draft, row, propose)
                if len(draft) >= cap or not keep_drafting(sequence, draft):
                    break
                h = self._head.forward(h[None], draft.token_ids[-1:], kv)[0]
        return drafts

    def _catch_up(self, runner: Runner, sequence: Sequence) -> Tensor:
        """Run the layer over all committed features that it has not seen: its last output [H]."""
        layers = self.hidden_layers(runner.config)
        text = self._texts.setdefault(sequence, _Text(layers))
        text.kv.truncate(text.num_read)  # what was drafted goes
        num_missing = len(sequence.token_ids) - 1 - text.num_known
        if num_missing:
            text.features = [_read(runner, sequence.token_ids[:-1], layers)]
            text.num_read = 0
            text.kv.truncate(0)
        features = torch.cat(text.features)
        token_ids = sequence.token_ids[text.num_read + 1 :]
        for start in range(0, len(features), CHUNK_SIZE):
            chunk = slice(start, start + CHUNK_SIZE)
            h = self._head.forward(self._head.fuse(features[chunk]), token_ids[chunk], text.kv)
        text.num_read += len(features)
        text.features = []
        return h[-1]


@dataclass
class _Text:
    """What the head has read of one text, and the features that it has not."""

    layers: tuple[int, ...]
    kv: HeadKV = field(default_factory=HeadKV)
    features: list[Tensor] = field(default_factory=list)
    num_read: int = 0

    @property
    def num_known(self) -> int:
        return self.num_read + sum(map(len, self.features))


def _read(runner: Runner, token_ids: SequenceOf[int], layers: SequenceOf[int]) -> Tensor:
    """Features of a text [len(token_ids), 3 H], by a pass of their own."""
    handle = runner.open(len(token_ids))
    try:
        parts = []
        for start in range(0, len(token_ids), CHUNK_SIZE):
            chunk = Segment(handle, token_ids[start : start + CHUNK_SIZE], 0)
            hidden = runner.forward(RaggedBatch([chunk]), hidden_layers=[*set(layers)])
            parts.append(torch.cat([hidden.hidden_states[layer] for layer in layers], -1))
    finally:
        runner.close(handle)
    return torch.cat(parts)
