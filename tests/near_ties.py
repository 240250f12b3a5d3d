"""The one excuse for a different token on real weights: plain decoding's own two best nearly tie.

Every use of it is counted, and printed when the tests end.
"""

from __future__ import annotations

from glimpse import Generation

MAX_GAP = 1e-4
"""Of the two largest log-probabilities, in nats."""

excused: list[str] = []


def assert_same_tokens(plain: Generation, token_ids: list[int], what: str) -> int:
    """Tokens equal ``plain``'s (which has ``logprobs=2``) up to a near-tie; how many do."""
    for i, (expected, found) in enumerate(zip(plain.token_ids, token_ids, strict=True)):
        if found != expected:
            best, second = sorted(plain.logprobs[i].top.values(), reverse=True)[:2]
            assert best - second < MAX_GAP, (
                f"{what}: token {i} is {found}, plain decoding has {expected}, "
                f"and its gap is {best - second:.2g}"
            )
            excused.append(f"{what}: token {i}, gap {best - second:.2g}")
            return i
    return len(token_ids)
