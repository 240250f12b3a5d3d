"""Train small Medusa and EAGLE-3 heads for a model, to see both drafters work on real weights.

The text is CPython's language reference, its first half; documents to measure on should come from
the second (``glimpse.bench.workloads``: specialnames, string-methods). This is no recipe: the
published heads saw a thousand times as much text. Heads are saved in the official layouts:

    python benchmarks/train_heads.py build/heads --minutes 20
    glimpse compare --methods medusa --draft-head build/heads/medusa --file ...
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.drafters.eagle_head import EagleHead, HeadKV
from glimpse.llm import LLM
from glimpse.types import DraftHead, RaggedBatch, Segment

TEXT_SIZE = 512
"""Tokens that are read as one text."""
NUM_HEADS = 3
PEAK_RATE = 1e-3


@dataclass
class Data:
    """What the target does on each text: [num_texts, TEXT_SIZE, ...]."""

    token_ids: Tensor
    targets: Tensor
    """Its likeliest next tokens."""
    features: Tensor
    """Inputs of three layers, side by side."""
    last: Tensor
    """What its head reads."""


def main(
    output: Path,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    minutes: Annotated[float, typer.Option(help="Of training for each kind.")] = 20.0,
    num_texts: Annotated[int, typer.Option(help=f"Of {TEXT_SIZE} tokens.")] = 110,
) -> None:
    torch.manual_seed(0)
    llm = LLM(model, runner="torch", method="autoregressive")
    config = llm.runner.config
    data = collect(llm, num_texts)
    head = llm_head(llm)
    for name, train in (("medusa", train_medusa), ("eagle3", train_eagle3)):
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        train(folder, config, data, head, 60 * minutes)


def collect(llm: LLM, num_texts: int) -> Data:
    names = sorted(topics)
    text = "\n\n".join(topics[name] for name in names[: len(names) // 2])
    ids = llm.tokenizer.encode(text)
    n = llm.runner.config.num_layers
    layers = (2, n // 2, n - 3)
    rows: list[list[Tensor]] = [[], [], [], []]
    for start in range(0, min(len(ids) // TEXT_SIZE, num_texts) * TEXT_SIZE, TEXT_SIZE):
        own = ids[start : start + TEXT_SIZE]
        handle = llm.runner.open(TEXT_SIZE)
        batch = RaggedBatch([Segment(handle, own, TEXT_SIZE)])
        result = llm.runner.forward(batch, hidden_layers=[*layers, n])
        llm.runner.close(handle)
        hidden = result.hidden_states
        features = torch.cat([hidden[layer] for layer in layers], -1)
        each = (torch.tensor(own), result.logits.argmax(-1), features, hidden[n])
        for column, value in zip(rows, each, strict=True):
            column.append(value)
    data = Data(*map(torch.stack, rows))
    say(f"{data.token_ids.numel()} tokens read")
    return data


def llm_head(llm: LLM) -> dict[str, Tensor]:
    """The target's embedding and head."""
    from glimpse.models import read_tensors

    wanted = ("model.embed_tokens.weight", "lm_head.weight")
    found = {name: x for name, x in read_tensors(llm.files, torch.float32) if name in wanted}
    return {"lm_head.weight": found[wanted[0]], **found}


def train_medusa(
    folder: Path, config: ModelConfig, data: Data, head: dict[str, Tensor], seconds: float
) -> None:
    """The blocks alone: every head's last layer stays the target's own."""
    hidden = config.hidden_size
    kept = data.targets.unique()  # a softmax over what occurs is several times as fast
    out, number = head["lm_head.weight"][kept], torch.zeros(config.vocab_size, dtype=torch.long)
    number[kept] = torch.arange(len(kept))
    weights = [torch.zeros(hidden, hidden, requires_grad=True) for _ in range(NUM_HEADS)]
    biases = [torch.zeros(hidden, requires_grad=True) for _ in range(NUM_HEADS)]
    # Head i reads position t and names what the target says at t + i + 1.
    end = TEXT_SIZE - NUM_HEADS
    x = data.last[:, :end].reshape(-1, hidden)
    y = [data.targets[:, i + 1 : end + i + 1].reshape(-1) for i in range(NUM_HEADS)]

    def loss() -> Tensor:
        rows = torch.randint(len(x), (256,))
        total = torch.zeros(())
        for weight, bias, target in zip(weights, biases, y, strict=True):
            mixed = x[rows] + F.silu(F.linear(x[rows], weight, bias))
            total = total + F.cross_entropy(F.linear(mixed, out), number[target[rows]])
        return total / NUM_HEADS

    descend("medusa", [*weights, *biases], loss, seconds)
    tensors = {}
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        tensors[f"{i}.0.linear.weight"] = weight.detach()
        tensors[f"{i}.0.linear.bias"] = bias.detach()
        tensors[f"{i}.1.weight"] = head["lm_head.weight"]
    torch.save(tensors, folder / "medusa_lm_head.pt")


def train_eagle3(
    folder: Path, config: ModelConfig, data: Data, head: dict[str, Tensor], seconds: float
) -> None:
    """One step from the target's features, and one from the layer's own output."""
    kept = data.targets.unique()
    settings: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_query_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps,
        "draft_vocab_size": len(kept),
    }
    tensors = eagle_start(config, head["lm_head.weight"][kept])
    fixed = {
        "d2t": kept - torch.arange(len(kept)),
        "model.embed_tokens.weight": head["model.embed_tokens.weight"],
    }
    number = torch.zeros(config.vocab_size, dtype=torch.long)
    number[kept] = torch.arange(len(kept))

    def loss() -> Tensor:
        own = EagleHead(DraftHead("eagle3", {**tensors, **fixed}, settings))
        text = int(torch.randint(len(data.features), ()))
        ids, targets = data.token_ids[text].tolist(), number[data.targets[text]]
        # Row t joins the features of t with token t + 1, and names what the target says there.
        h = own.forward(own.fuse(data.features[text, :-1]), ids[1:], HeadKV())
        first = F.cross_entropy(named(tensors, h, config), targets[1:])
        again = own.forward(h[:-1], ids[2:], HeadKV())
        return first + 0.5 * F.cross_entropy(named(tensors, again, config), targets[2:])

    descend("eagle3", [*tensors.values()], loss, seconds)
    occurs = torch.zeros(config.vocab_size, dtype=torch.bool)
    occurs[kept] = True
    saved = {name: x.detach() for name, x in tensors.items()}
    torch.save({**saved, "d2t": fixed["d2t"], "t2d": occurs}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")


def named(tensors: dict[str, Tensor], h: Tensor, config: ModelConfig) -> Tensor:
    normed = F.rms_norm(h, (h.shape[-1],), tensors["norm.weight"], config.rms_norm_eps)
    return F.linear(normed, tensors["lm_head.weight"])


def eagle_start(config: ModelConfig, out: Tensor) -> dict[str, Tensor]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_query_heads * dim, config.num_kv_heads * dim
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (query, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, query),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
    }
    tensors = {name: torch.randn(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = torch.ones(hidden)
    tensors |= {"norm.weight": torch.ones(hidden), "lm_head.weight": out.clone()}
    return {name: x.requires_grad_() for name, x in tensors.items()}


def descend(name: str, weights: list[Tensor], loss: Any, seconds: float) -> None:
    """AdamW until the time is up, the rate falling to nothing."""
    optimiser = torch.optim.AdamW(weights, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    started, step, mean = time.perf_counter(), 0, 0.0
    while (share := (time.perf_counter() - started) / seconds) < 1:
        optimiser.param_groups[0]["lr"] = PEAK_RATE * min(1.0, (step + 1) / 50) * (1 - share)
        optimiser.zero_grad()
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        step += 1
        mean = value.item() if step == 1 else 0.98 * mean + 0.02 * value.item()
        if step % 50 == 0:
            say(f"{name}: step {step}, loss {mean:.3f}, {share:.0%} of the time")


def say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    typer.run(main)
