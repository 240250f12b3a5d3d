"""From logits to tokens: processors, noise, signals. Pure functions of logits and histories.

Arithmetic is float32, or float64 where the logits are; every random choice is made in float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from glimpse.config import SamplingParams
from glimpse.types import DraftSignal, Sequence, TokenLogprobs

NUM_LIKELY = 64
"""Tokens whose noise is looked at first in ``gumbel_argmax``; changes its speed only."""
NUCLEUS_SIZES = (256, 4096)
"""How many tokens top-p looks at before it sorts the whole vocabulary."""


# ------------------------------------------------------------------------------------ processors


def penalise(logits: Tensor, sequence: Sequence, draft_ids: SequenceOf[int] = ()) -> Tensor:
    """Logits after bias, penalties and ``min_tokens``: what greedy decoding takes the argmax of.

    ``logits`` [rows, vocab_size] are the rows of one pass: the last follows ``draft_ids``, the one
    before it all of them but the last, and so on; each is penalised with its own history. The order
    is that of Transformers and vLLM: bias, repetition, presence and frequency, forbidden tokens.
    What is off costs nothing: with everything off the result is the input itself.
    """
    params = sequence.params
    num_seen = len(draft_ids) - len(logits) + 1
    if num_seen < 0:
        raise ValueError(f"{len(logits)} rows of logits for {len(draft_ids)} drafted tokens")
    logits = _as_float(logits)
    num_forbidding = params.min_tokens - sequence.num_output_tokens - num_seen
    if not (params.logit_bias or _has_penalties(params) or num_forbidding > 0):
        return logits
    logits = logits.clone()
    _add_bias(logits, params)
    if _has_penalties(params):
        counts = Counter([*sequence.output_ids, *draft_ids[:num_seen]])
        for i, row in enumerate(logits):
            if i > 0:
                counts[draft_ids[num_seen + i - 1]] += 1
            _apply_penalties(row, sequence, counts)
    if num_forbidding > 0:
        logits[:num_forbidding, _stop_ids(sequence, logits.shape[-1])] = -torch.inf
    return logits


def process_logits(logits: Tensor, sequence: Sequence, draft_ids: SequenceOf[int] = ()) -> Tensor:
    """Log-probabilities [rows, vocab_size] that tokens are sampled from; rows as in ``penalise``.

    After the penalties: temperature, top-k, top-p, min-p, in Transformers' order; tokens that tie
    with the last one kept are kept. At temperature 0 the law is one-hot: 0 at the argmax, else
    -inf. Raises ValueError for a row without a finite maximum (NaN, or every token forbidden).
    """
    params = sequence.params
    logits = penalise(logits, sequence, draft_ids)
    if params.is_greedy:
        chosen = torch.as_tensor(_argmax(logits), device=logits.device)
        return torch.full_like(logits, -torch.inf).scatter_(-1, chosen[:, None], 0.0)
    peak = logits.amax(-1, keepdim=True)
    _require_finite(peak)
    if params.temperature != 1.0:
        # Subtracting the maximum first keeps a tiny temperature from overflowing to inf - inf.
        logits = (logits - peak) / max(params.temperature, torch.finfo(logits.dtype).tiny)
    if params.top_k or params.top_p < 1 or params.min_p:
        logits = torch.stack([_truncate(row, params) for row in logits])
    return logits.log_softmax(-1)


def greedy_tokens(logits: Tensor, sequence: Sequence, draft_ids: SequenceOf[int] = ()) -> list[int]:
    """The likeliest token of each row after the penalties; rows as in ``penalise``."""
    tokens: list[int] = _argmax(penalise(logits, sequence, draft_ids)).tolist()
    return tokens


def _as_float(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _has_penalties(params: SamplingParams) -> bool:
    has_count_penalty = params.presence_penalty != 0 or params.frequency_penalty != 0
    return has_count_penalty or params.repetition_penalty != 1


def _add_bias(logits: Tensor, params: SamplingParams) -> None:
    if not params.logit_bias:
        return
    vocab_size = logits.shape[-1]
    for token_id in params.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"logit_bias[{token_id}]: token ids go from 0 to {vocab_size - 1}")
    ids = _indices(params.logit_bias, logits)
    logits[:, ids] += logits.new_tensor(list(params.logit_bias.values()))


def _apply_penalties(row: Tensor, sequence: Sequence, counts: Counter[int]) -> None:
    """Penalise one row [vocab_size] in place; ``counts`` are those of the output so far."""
    params = sequence.params
    if params.repetition_penalty != 1:
        ids = _indices(sequence.prompt_token_set | counts.keys(), row)
        seen = row[ids]
        factor = params.repetition_penalty
        row[ids] = torch.where(seen > 0, seen / factor, seen * factor)
    if params.presence_penalty or params.frequency_penalty:
        times = row.new_tensor(list(counts.values()))
        penalties = params.presence_penalty + params.frequency_penalty * times
        row[_indices(counts, row)] -= penalties


def _stop_ids(sequence: Sequence, vocab_size: int) -> Tensor:
    eos_ids = () if sequence.params.ignore_eos else sequence.eos_token_ids
    ids = {*eos_ids, *sequence.params.stop_token_ids}
    return torch.tensor([i for i in ids if 0 <= i < vocab_size], dtype=torch.long)


def _indices(token_ids: Collection[int], like: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=like.device)


def _argmax(logits: Tensor) -> NDArray[np.int64]:
    """Argmax of each row, the first of equals; ValueError unless the maximum is finite."""
    # On a CPU numpy's argmax is an order of magnitude faster than torch's.
    indices = logits.numpy().argmax(-1) if logits.is_cpu else logits.argmax(-1).cpu().numpy()
    _require_finite(logits[range(len(logits)), indices])
    return indices


def _require_finite(peaks: Tensor) -> None:
    if not bool(peaks.isfinite().all()):
        found = peaks.flatten().tolist()
        raise ValueError(f"the largest logit of each row must be finite, found {found}")


def _truncate(row: Tensor, params: SamplingParams) -> Tensor:
    if 0 < params.top_k < len(row):
        row = _drop_below(row, row.topk(params.top_k).values[-1])
    if params.top_p < 1:
        row = _drop_below(row, _nucleus_edge(row, params.top_p))
    if params.min_p:
        row = _drop_below(row, row.amax() + math.log(params.min_p))
    return row


def _drop_below(row: Tensor, edge: Tensor) -> Tensor:
    # F.threshold keeps what is strictly above and is much faster than a mask.
    below = torch.nextafter(edge, torch.full_like(edge, -torch.inf))
    return F.threshold(row, below.item(), -math.inf)


def _nucleus_edge(row: Tensor, top_p: float) -> Tensor:
    """Smallest logit of the shortest list of likeliest tokens that holds ``top_p`` of the mass."""
    total = row.logsumexp(-1)
    for size in (*NUCLEUS_SIZES, len(row)):
        top = row.topk(min(size, len(row))).values
        mass = (top - total).double().exp().cumsum(-1)
        if mass[-1] >= top_p:
            break
    return top[(mass[:-1] < top_p).sum()]


# ----------------------------------------------------------------------------------------- noise


def gumbel(seed: int, choice: int, position: int, vocab_size: int) -> Tensor:
    """Gumbel noise [vocab_size], float64, keyed by (seed, choice, position, token id) alone.

    Token i's noise comes from word i of numpy's counter-based Philox, so it does not depend on the
    size of the vocabulary, on a device or on what was drawn before.
    """
    return torch.from_numpy(_to_gumbel(_random_bits(seed, choice, position, vocab_size)))


def gumbel_argmax(log_probs: Tensor, seed: int, choice: int, position: int) -> int:
    """argmax of ``log_probs`` [vocab_size] + ``gumbel(...)``: a sample from the law.

    Summed and compared in float64 on the CPU, so that the choice is the same on every device; equal
    sums (the noise has 52 bits) go to the smaller id. Equal to the plain formula, but noise is
    worked out only for tokens that can win: the likeliest, and those with lucky random bits.
    """
    values = log_probs.cpu()
    bits = _random_bits(seed, choice, position, len(values))
    likely = values.topk(min(NUM_LIKELY, len(values)))
    log_p = values.numpy()

    def scores(ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return log_p[ids].astype(np.float64) + _to_gumbel(bits[ids])

    candidates = likely.indices.numpy()
    floor = likely.values[-1].item()
    if floor > -math.inf:
        # Beyond the likely ones log p is at most the floor: the noise must make up the difference.
        needed = scores(candidates).max() - floor
        uniform = math.exp(-math.exp(-needed)) - 1e-12  # The margin is far above rounding errors.
        lucky = np.flatnonzero(bits > np.uint64(max(uniform, 0.0) * 2.0**64))
        candidates = np.concatenate([candidates, lucky])
    candidates = np.unique(candidates)
    return int(candidates[scores(candidates).argmax()])


def sample(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """An index with probability proportional to its weight, by the inverse of the distribution."""
    cumulative = weights.cumsum()
    # The first entry above the draw: an index of weight zero is never returned.
    return int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))


def _random_bits(seed: int, choice: int, position: int, size: int) -> NDArray[np.uint64]:
    key = np.array([seed, choice], dtype=np.uint64)
    # The last word keeps this apart from the sequence's own stream, which starts from counter 0.
    counter = np.array([0, position, 0, 1], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(size)


def _to_gumbel(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """-log(-log(u)) with u in the middle of one of 2**52 equal cells: never 0, never 1."""
    uniform = ((bits >> np.uint64(12)) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


# --------------------------------------------------------------------------------------- signals


def signal(logits: Tensor, token_id: int) -> DraftSignal:
    """What raw draft logits [vocab_size] say about the token chosen from them, at temperature 1."""
    # In numpy: torch's operators cost more than the arithmetic, and this runs for every draft.
    values = _as_float(logits).cpu().numpy()
    top = int(values.argmax())
    if not math.isfinite(values[top]):
        raise ValueError(f"the largest draft logit must be finite, found {values[top]}")
    # exp(-1e4) is 0, and so is 0 * -1e4, where 0 * -inf would be NaN.
    shifted = np.maximum(values - values[top], values.dtype.type(-1e4))
    weights = np.exp(shifted)
    total = float(weights.sum())
    others = [float(part.max()) for part in (shifted[:top], shifted[top + 1 :]) if len(part)]
    return DraftSignal(
        entropy=math.log(total) - float(weights @ shifted) / total,
        top_prob=1.0 / total,
        margin=-max(others, default=-math.inf),
        token_prob=float(weights[token_id]) / total,
    )


def token_logprobs(logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probability of a token under raw target logits [vocab_size], and the likeliest few."""
    log_probs = _as_float(logits).log_softmax(-1)
    top = log_probs.topk(min(num_top, len(log_probs)))
    return TokenLogprobs(
        token_id=token_id,
        logprob=log_probs[token_id].item(),
        top=dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)),
    )
