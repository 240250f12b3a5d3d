"""An engine that says what it was asked; importable, since peers live in processes of their own."""

from __future__ import annotations

import os

from glimpse.bench.peers import Measurement, Request


class FakePeer:
    """Answers token 0, 1, 2, ... at ``speed`` tokens per second; its text changes at ``twist``."""

    def __init__(self, speed: float = 10.0, twist: int | None = None, fails_at: int = -1) -> None:
        self.speed, self.twist, self.fails_at, self.num_calls = speed, twist, fails_at, 0
        self.settings = {"version": "1", "omp": os.environ.get("OMP_NUM_THREADS")}

    def generate(self, request: Request) -> Measurement:
        self.num_calls += 1
        if self.num_calls == self.fails_at:
            raise RuntimeError("fake: out of tokens")
        token_ids = list(range(request.max_tokens))
        if self.twist is not None:
            token_ids[self.twist] += 1
        ttft = len(request.prompt_ids) / 1000
        return Measurement(ttft, (request.max_tokens - 1) / self.speed, token_ids, 8, 6)

    def peak_memory(self) -> int:
        return 2**30

    def close(self) -> None:
        pass

    def __enter__(self) -> FakePeer:
        return self

    def __exit__(self, *_: object) -> None:
        pass
