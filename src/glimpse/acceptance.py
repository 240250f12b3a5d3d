"""Which drafted tokens are kept: the longest valid prefix and one more token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glimpse.config import SamplingParams
from glimpse.registry import Registry
from glimpse.sampling import greedy_tokens, gumbel_argmax, process_logits, sample
from glimpse.types import Draft, Sequence


class Acceptance(Protocol):
    """How drafted tokens are chosen and checked, so that the output's law is the target's."""

    needs_law: ClassVar[bool]
    """Whether ``accept`` needs the law that drafted tokens were sampled from."""

    def propose(
        self, sequence: Sequence, draft: Draft, logits: Tensor
    ) -> tuple[int, Tensor | None]:
        """Choose the token after ``draft`` from raw draft logits [vocab_size].

        Also returns the log-probabilities [vocab_size] it was sampled from, where ``accept`` needs
        them: the drafter appends them to ``draft.log_probs``.
        """

    def accept(self, sequence: Sequence, draft: Draft, logits: Tensor) -> list[int]:
        """The accepted prefix of the draft and one more token.

        ``logits`` [len(draft) + 1, vocab_size] are the target's raw logits: row i follows i drafted
        tokens. Raises ValueError for another number of rows.
        """


acceptances: Registry[Acceptance] = Registry("acceptance")


def resolve_acceptance(name: str, params: SamplingParams) -> str:
    """The rule that ``name`` stands for: ``auto`` is greedy at temperature 0, else coupled.

    Raises ValueError for an unknown rule, and for greedy at a temperature above 0.
    """
    if name == "auto":
        return "greedy" if params.is_greedy else "coupled"
    if acceptances.get(name) is Greedy:
        _require_greedy(params)
    return name


@dataclass(frozen=True)
class Greedy:
    """Keep a token while it is the target's likeliest (Stern et al., arXiv 1811.03115)."""

    needs_law: ClassVar[bool] = False

    def propose(
        self, sequence: Sequence, draft: Draft, logits: Tensor
    ) -> tuple[int, Tensor | None]:
        _require_greedy(sequence.params)
        return greedy_tokens(logits[None], sequence, draft.token_ids)[0], None

    def accept(self, sequence: Sequence, draft: Draft, logits: Tensor) -> list[int]:
        _require_greedy(sequence.params)
        _require_rows(draft, logits)
        targets = greedy_tokens(logits, sequence, draft.token_ids)
        pairs = zip(draft.token_ids, targets, strict=False)
        num_accepted = next((i for i, (x, t) in enumerate(pairs) if x != t), len(draft))
        return targets[: num_accepted + 1]


@dataclass(frozen=True)
class Coupled:
    """Draft and target take argmax(log p + g) with the same Gumbel noise g; keep while they agree.

    The noise is keyed by seed, choice, absolute position and token id alone, so the text is that of
    plain decoding with the same seed, whatever is drafted.
    Gumbel coupling for speculative decoding: Daliri et al., arXiv 2408.07978.
    """

    needs_law: ClassVar[bool] = False

    def propose(
        self, sequence: Sequence, draft: Draft, logits: Tensor
    ) -> tuple[int, Tensor | None]:
        return self._choose(sequence, draft.token_ids, logits), None

    def accept(self, sequence: Sequence, draft: Draft, logits: Tensor) -> list[int]:
        _require_rows(draft, logits)
        tokens: list[int] = []
        # Row by row: the work stops at the first difference, and one row has the same shape, hence
        # the same rounding, as in plain decoding.
        for i, row in enumerate(logits):
            tokens.append(self._choose(sequence, draft.token_ids[:i], row))
            if draft.token_ids[i : i + 1] != tokens[-1:]:
                break
        return tokens

    def _choose(self, sequence: Sequence, draft_ids: list[int], row: Tensor) -> int:
        if sequence.params.is_greedy:  # The law is one-hot: no noise can change its argmax.
            return greedy_tokens(row[None], sequence, draft_ids)[0]
        log_probs = process_logits(row[None], sequence, draft_ids)[0]
        position = len(sequence.token_ids) + len(draft_ids)
        return gumbel_argmax(log_probs, sequence.seed, sequence.choice, position)


@dataclass(frozen=True)
class Rejection:
    """Keep x with probability min(1, p/q), else draw from the residual max(p - q, 0).

    Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. Tokens proposed without a law
    (``draft.log_probs`` empty) count as drawn from a one-hot q.
    """

    needs_law: ClassVar[bool] = True

    def propose(
        self, sequence: Sequence, draft: Draft, logits: Tensor
    ) -> tuple[int, Tensor | None]:
        log_probs = process_logits(logits[None], sequence, draft.token_ids)[0]
        return sample(_probs(log_probs), sequence.rng), log_probs

    def accept(self, sequence: Sequence, draft: Draft, logits: Tensor) -> list[int]:
        _require_rows(draft, logits)
        if len(draft.log_probs) not in (0, len(draft)):
            count = f"{len(draft.log_probs)} laws for {len(draft)} drafted tokens"
            raise ValueError(f"{count}: must be one each, or none")
        for i, token_id in enumerate(draft.token_ids):
            target = _probs(process_logits(logits[i : i + 1], sequence, draft.token_ids[:i])[0])
            if draft.log_probs:
                proposal = _probs(draft.log_probs[i])
            else:
                proposal = np.zeros_like(target)
                proposal[token_id] = 1.0
            if sequence.rng.random() * proposal[token_id] < target[token_id]:
                continue
            residual = np.maximum(target - proposal, 0.0)
            # Equal laws leave no residual, and a rejection then comes from rounding alone.
            law = residual if residual.any() else target
            return [*draft.token_ids[:i], sample(law, sequence.rng)]
        bonus = process_logits(logits[-1:], sequence, draft.token_ids)[0]
        return [*draft.token_ids, sample(_probs(bonus), sequence.rng)]


acceptances.register(Greedy, "greedy")
acceptances.register(Coupled, "coupled")
acceptances.register(Rejection, "rejection")


def _probs(log_probs: Tensor) -> NDArray[np.float64]:
    """Probabilities as float64, rescaled to sum to 1 as float32 ones do only nearly."""
    probs: NDArray[np.float64] = log_probs.exp().cpu().numpy().astype(np.float64)
    probs /= probs.sum()
    return probs


def _require_greedy(params: SamplingParams) -> None:
    if not params.is_greedy:
        raise ValueError(
            f"acceptance 'greedy' needs temperature=0, not {params.temperature}; "
            "valid when sampling: coupled, rejection"
        )


def _require_rows(draft: Draft, logits: Tensor) -> None:
    if len(logits) != len(draft) + 1:
        raise ValueError(f"{len(logits)} rows of logits: must be {len(draft) + 1}")
