"""A model on a shortened prompt drafts for the target on the whole."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar, Literal

from glimpse.drafters import Assets, Drafter, KeepDrafting, Propose, drafters
from glimpse.drafters.companion import Companions
from glimpse.drafters.retrieval import shorten
from glimpse.types import Draft, Runner, Sequence


@drafters.register
@dataclass
class Rapid(Drafter):
    """RAPID (Chen et al. 2025, arXiv 2502.20330): draft from the chunks of the prompt that have
    most to do with its end.

    The paper's chunks of 512 tokens, 8192 in all. ``model`` is the target itself or a second one.
    Chunks are ranked by BM25 over tokens for the prompt's last ``query_size``. This is the lossless
    form (the paper's eta = 0): the target's law is not mixed with the drafter's.
    """

    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    model: Literal["target", "auxiliary"] = "target"
    num_tokens: int = 8192
    chunk_size: int = 512
    query_size: int = 128

    def __post_init__(self) -> None:
        for name in ("chunk_size", "query_size"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        least = self.chunk_size + self.query_size
        if self.num_tokens < least:
            raise ValueError(
                f"num_tokens={self.num_tokens}: must be at least chunk_size + query_size ({least})"
            )
        self._draft_runner: Runner | None = None
        self._companions: Companions | None = None

    @property
    def needs_draft_model(self) -> bool:
        return self.model == "auxiliary"

    def attach(self, assets: Assets) -> None:
        self._draft_runner = assets.draft_runner if self.needs_draft_model else None

    def forget(self, sequence: Sequence) -> None:
        if self._companions is not None:
            self._companions.forget(sequence)

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        if self._companions is None:
            self._companions = Companions(self._draft_runner or runner, self._shorten)
        vocab_size = runner.config.vocab_size
        return self._companions.draft(sequences, caps, vocab_size, propose, keep_drafting)

    def _shorten(self, sequence: Sequence) -> list[int]:
        prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
        return shorten(prompt_ids, self.num_tokens, self.chunk_size, self.query_size)
