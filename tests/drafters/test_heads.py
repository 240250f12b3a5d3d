"""Medusa and EAGLE-3: official checkpoints load, outputs are those of the published equations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.config import Method, SamplingParams
from glimpse.drafters import Assets
from glimpse.drafters.eagle_head import EagleHead, HeadKV
from glimpse.drafters.medusa import Medusa
from glimpse.engine import Engine
from glimpse.llm import LLM
from glimpse.models import ModelError, load_config, load_head, resolve
from glimpse.types import DraftHead, RaggedBatch, Runner, Segment
from tests.heads import EAGLE_SETTINGS, eagle_tensors, medusa_tensors, tiny_head
from tests.tiny import PLAIN, decode, prompts, tiny_runner

PARAMS = SamplingParams(max_tokens=20)
DRAFT_VOCAB_SIZE = 30


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner()


@pytest.fixture(scope="module")
def medusa(runner: Runner) -> DraftHead:
    return tiny_head("medusa", runner.config)


@pytest.fixture(scope="module")
def eagle3(runner: Runner) -> DraftHead:
    return tiny_head("eagle3", runner.config)


def inputs(runner: Runner, token_ids: list[int], layer: int) -> Tensor:
    handle = runner.open()
    batch = RaggedBatch([Segment(handle, token_ids)])
    hidden = runner.forward(batch, hidden_layers=[layer]).hidden_states[layer]
    runner.close(handle)
    return hidden


def generate(runner: Runner, method: Method, head: DraftHead):
    engine = Engine(runner, decode, assets=Assets(head=head))
    opened = [engine.open(ids, PARAMS, method) for ids in prompts(runner, (33, 7))]
    drafts = []
    while running := [sequence for sequence in opened if not sequence.is_finished]:
        before = [list(sequence.token_ids) for sequence in running]
        outcomes = engine.round(running)
        drafts += [(ids, out.draft.token_ids) for ids, out in zip(before, outcomes, strict=True)]
    return [sequence.output_ids for sequence in opened], drafts


def test_medusa_drafts_what_its_equations_say(runner: Runner, medusa: DraftHead) -> None:
    texts, drafts = generate(runner, Method("m", "medusa", None, "fixed:k=5"), medusa)
    assert texts == generate(runner, PLAIN, medusa)[0]
    drafts = [(text, draft) for text, draft in drafts if draft]
    assert drafts
    t = {name: x.double() for name, x in medusa.tensors.items()}
    for text, draft in drafts:
        x = inputs(runner, text[:-1], runner.config.num_layers)[-1]
        expected = []
        for i in range(min(3, PARAMS.max_tokens)):
            z = t[f"{i}.0.linear.weight"] @ x + t[f"{i}.0.linear.bias"]
            expected.append(int((t[f"{i}.1.weight"] @ (x + z * torch.sigmoid(z))).argmax()))
        assert draft == expected[: len(draft)]
    assert max(len(draft) for _, draft in drafts) == 3


def eagle_reference(
    tensors: dict[str, Tensor], features: Tensor, token_ids: list[int], num_drafts: int
) -> list[int]:
    """A chain of drafts from scratch: all rows at each step, one head after the other."""
    t = {name.removesuffix(".weight"): x.double() for name, x in tensors.items()}
    num_heads, num_kv, dim, _, eps = EAGLE_SETTINGS.values()

    def norm(name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * t[name]

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.complex(x[:, : dim // 2], x[:, dim // 2 :])
        exponents = torch.arange(dim // 2).double() * 2 / dim
        angles = torch.arange(len(x)).double()[:, None] / 10000**exponents
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)

    h, ids = features.double() @ t["fc"].T, list(token_ids)
    drafted: list[int] = []
    for _ in range(num_drafts):
        e = t["model.embed_tokens"][ids]
        x = torch.cat([norm("midlayer.input_layernorm", e), norm("midlayer.hidden_norm", h)], -1)
        q, k, v = (x @ t[f"midlayer.self_attn.{name}_proj"].T for name in "qkv")
        mask = torch.full((len(x), len(x)), -torch.inf).double().triu(1)
        parts = []
        for i in range(num_heads):
            own, shared = slice(i * dim, (i + 1) * dim), i // (num_heads // num_kv)
            kv = slice(shared * dim, (shared + 1) * dim)
            scores = rotated(q[:, own]) @ rotated(k[:, kv]).T / dim**0.5 + mask
            parts.append(scores.softmax(-1) @ v[:, kv])
        y = h + torch.cat(parts, -1) @ t["midlayer.self_attn.o_proj"].T
        z = norm("midlayer.post_attention_layernorm", y)
        gate, up = z @ t["midlayer.mlp.gate_proj"].T, z @ t["midlayer.mlp.up_proj"].T
        out = y + (F.silu(gate) * up) @ t["midlayer.mlp.down_proj"].T
        own_id = int((norm("norm", out[-1]) @ t["lm_head"].T).argmax())
        drafted.append(own_id + int(tensors["d2t"][own_id]))
        h, ids = torch.cat([h, out[-1:]]), [*ids, drafted[-1]]
    return drafted


def test_eagle3_drafts_what_its_equations_say(runner: Runner, eagle3: DraftHead) -> None:
    texts, drafts = generate(runner, Method("e", "eagle3", None, "fixed:k=4"), eagle3)
    assert texts == generate(runner, PLAIN, eagle3)[0]
    drafts = [(text, draft) for text, draft in drafts if draft]
    assert len(drafts) > 4
    for text, draft in drafts:
        features = torch.cat([inputs(runner, text[:-1], layer) for layer in (2, 1, 0)], -1)
        assert draft == eagle_reference(dict(eagle3.tensors), features, text[1:], len(draft))
    assert all(token_id % 2 == 0 for _, draft in drafts for token_id in draft)


def test_the_head_knows_no_last_position(eagle3: DraftHead) -> None:
    head, kv = EagleHead(eagle3), HeadKV()
    h = torch.randn(3000, 36, dtype=torch.float64)
    whole = head.forward(h, [5] * 3000, kv)
    kv.truncate(2900)
    assert kv.length == 2900
    torch.testing.assert_close(head.forward(h[2900:], [5] * 100, kv), whole[2900:])


@pytest.mark.parametrize("name", ["medusa", "eagle3"])
def test_a_head_for_another_method_is_refused(
    runner: Runner, medusa: DraftHead, eagle3: DraftHead, name: str
) -> None:
    other = eagle3 if name == "medusa" else medusa
    with pytest.raises(ValueError, match=f"needs a head of kind {name}, not {other.kind}"):
        Engine(runner, decode, assets=Assets(head=other)).open([1, 2], PARAMS, Method("t", name))
    with pytest.raises(ValueError, match="drafts with a head trained for the model"):
        Engine(runner, decode).open([1, 2], PARAMS, Method("t", name))


def write(folder: Path, kind: str, tensors: dict[str, Tensor]) -> str:
    names = {"medusa": "medusa_lm_head.pt", "eagle3": "pytorch_model.bin"}
    torch.save(tensors, folder / names[kind])
    if kind == "eagle3":
        settings = {**EAGLE_SETTINGS, "hidden_size": 32, "draft_vocab_size": DRAFT_VOCAB_SIZE}
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("runner_name", ["torch", "native"])
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_an_official_checkpoint_drafts(
    tiny_checkpoint, tmp_path: Path, kind: str, runner_name: str
) -> None:
    target = str(tiny_checkpoint("llama", has_tokenizer=True, num_hidden_layers=4))
    config = load_config(resolve(target))
    make = medusa_tensors if kind == "medusa" else lambda c: eagle_tensors(c, DRAFT_VOCAB_SIZE)
    head = write(tmp_path, kind, make(config))
    llm = LLM(target, runner=runner_name, method=kind, draft_head=head)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    drafted = llm.generate("a text", params)[0]
    assert drafted.stats.drafted > 0
    assert drafted.token_ids == llm.generate("a text", params, method="autoregressive")[0].token_ids


@pytest.mark.parametrize(
    ("kind", "name", "shape", "words"),
    [
        ("medusa", "1.0.linear.bias", None, "'1.0.linear.bias' is missing"),
        ("medusa", "2.1.weight", (300, 31), r"has shape \[300, 31\], the target needs \[300, 32\]"),
        ("medusa", "0.1.linear.weight", (32, 32), "unknown tensor '0.1.linear.weight'"),
        ("eagle3", "fc.weight", None, "'fc.weight' is missing"),
        ("eagle3", "norm.weight", (3,), r"has shape \[3\], the target needs \[32\]"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_named(
    tiny_checkpoint, tmp_path: Path, kind: str, name: str, shape, words: str
) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    config = load_config(files)
    make = medusa_tensors if kind == "medusa" else lambda c: eagle_tensors(c, DRAFT_VOCAB_SIZE)
    tensors = make(config)
    tensors.pop(name, None)
    if shape is not None:
        tensors[name] = torch.zeros(shape)
    with pytest.raises(ModelError, match=words):
        load_head(write(tmp_path, kind, tensors), files)


def test_a_folder_without_a_head_is_refused(tiny_checkpoint, tmp_path: Path) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    with pytest.raises(ModelError, match="it holds neither medusa_lm_head"):
        load_head(str(tmp_path), files)


def test_medusas_logits_are_moved_to_where_hidden_states_are(medusa: DraftHead) -> None:
    drafter = Medusa()
    drafter.attach(Assets(head=medusa))
    assert drafter.logits(0, torch.zeros(2, 36, dtype=torch.float64)).dtype == torch.float64
