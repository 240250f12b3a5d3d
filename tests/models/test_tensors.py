"""Weights under the hub's names, from safetensors and GGUF."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file

from glimpse.models import ModelError, load_config, read_tensors, resolve, tensor_shapes


def _read(path, dtype=torch.float32):
    return dict(read_tensors(resolve(str(path)), dtype))


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_folder_of_each_family(tiny_checkpoint, family):
    folder = tiny_checkpoint(family)
    _assert_equal(_read(folder), load_file(folder / "model.safetensors"))


def test_every_kind_of_bias(tiny_checkpoint):
    folder = tiny_checkpoint("llama", attention_bias=True, mlp_bias=True)
    _assert_equal(_read(folder), load_file(folder / "model.safetensors"))


def test_sharded_equals_whole(tiny_checkpoint):
    whole = _read(tiny_checkpoint("qwen3"))
    _assert_equal(_read(tiny_checkpoint("qwen3", max_shard_size="30KB")), whole)


def test_tied_embeddings_come_once(tiny_checkpoint):
    tensors = _read(tiny_checkpoint("llama", tie_word_embeddings=True))
    assert "lm_head.weight" not in tensors
    assert "model.embed_tokens.weight" in tensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype(tiny_checkpoint, dtype):
    folder = tiny_checkpoint("llama")
    expected = load_file(folder / "model.safetensors")
    _assert_equal(_read(folder, dtype), {name: t.to(dtype) for name, t in expected.items()})


def test_shapes_are_those_of_the_file(tiny_checkpoint):
    folder = tiny_checkpoint("qwen2")
    shapes = tensor_shapes(load_config(resolve(str(folder))))
    stored = load_file(folder / "model.safetensors")
    assert shapes == {name: tuple(tensor.shape) for name, tensor in stored.items()}


# ------------------------------------------------------------------------------- broken folders


def _edit(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_truncated_safetensors(tiny_checkpoint, keep):
    path = tiny_checkpoint("llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors as safetensors \(cut short\?\)"):
        read_tensors(resolve(str(path.parent)), torch.float32)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda t: t.pop("model.norm.weight"), r"tensor model\.norm\.weight is missing"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(31)}),
            r"model\.norm\.weight has shape \(31,\), its config says \(32,\)",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.router.weight": torch.ones(2)}),
            r"model\.layers\.0\.mlp\.router\.weight does not belong",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
            r"quantized weights \(model\.norm\.weight is I8\)",
        ),
    ],
)
def test_wrong_tensors_by_name(tiny_checkpoint, edit, reason):
    folder = tiny_checkpoint("llama")
    _edit(folder, edit)
    with pytest.raises(ModelError, match=reason):
        read_tensors(resolve(str(folder)), torch.float32)


def test_redundant_tensors_are_passed_over(tiny_checkpoint):
    folder = tiny_checkpoint("llama", tie_word_embeddings=True)
    expected = _read(folder)
    inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _edit(
        folder, lambda t: t.update({"lm_head.weight": torch.ones(300, 32), inv_freq: torch.ones(4)})
    )
    _assert_equal(_read(folder), expected)


# ----------------------------------------------------------------------------------------- gguf


def test_default_model_equals_transformers(smollm2_files, smollm2_reference):
    expected = smollm2_reference.state_dict()
    expected.pop("lm_head.weight")  # tied
    _assert_equal(dict(read_tensors(smollm2_files, torch.float32)), expected)


GGUF_TO_HUB = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.attn_q_norm": "model.layers.0.self_attn.q_norm",
    "blk.0.attn_k_norm": "model.layers.0.self_attn.k_norm",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_gguf_keeps_the_rows_of_qwen(tiny_gguf, architecture):
    path = tiny_gguf(architecture)
    stored = resolve(str(path)).gguf
    expected = {}
    for name in stored.tensors:
        stem, _, kind = name.rpartition(".")
        expected[f"{GGUF_TO_HUB[stem]}.{kind}"] = torch.from_numpy(stored.dequantized(name))
    _assert_equal(_read(path), expected)


def test_gguf_restores_the_rows_of_llama(tiny_gguf):
    """One head of 8 rows: llama.cpp stores rows 0 4 1 5 2 6 3 7 of the hub's order."""
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    hub_k = torch.arange(16 * 32.0).reshape(16, 32)
    stored_k = torch.cat([hub_k[:8][order], hub_k[8:][order]])
    tensors = _read(tiny_gguf(tensors={"blk.0.attn_k.weight": stored_k.numpy()}))
    assert torch.equal(tensors["model.layers.0.self_attn.k_proj.weight"], hub_k)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_stored_types(tiny_gguf, kind):
    kind = GGMLQuantizationType[kind]
    values = np.random.default_rng(1).standard_normal((32, 64), np.float32)
    blocks = quants.quantize(values, kind)
    path = tiny_gguf("qwen2", tensors={"blk.0.ffn_down.weight": (blocks, kind)})
    found = _read(path)["model.layers.0.mlp.down_proj.weight"]
    assert torch.equal(found, torch.from_numpy(quants.dequantize(blocks, kind)))
    assert (found - torch.from_numpy(values)).abs().max() < 0.5
    name, stored = resolve(str(path)).gguf.stored("blk.0.ffn_down.weight")
    assert name == kind.name
    assert stored.tobytes() == blocks.tobytes()


def test_gguf_tensors_are_writable(tiny_gguf):
    tensors = _read(tiny_gguf())
    for tensor in tensors.values():
        tensor.zero_()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.99])
def test_truncated_gguf(smollm2_files, tmp_path, share):
    path = tmp_path / "cut.gguf"
    with smollm2_files.weights[0].open("rb") as file:
        path.write_bytes(file.read(int(share * 98_362_432)))
    with pytest.raises(ModelError, match=r"cut\.gguf as GGUF \(cut short\?\)"):
        load_config(resolve(str(path)))


def test_file_that_is_no_gguf(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("This is a text, and not a short one. " * 100)
    with pytest.raises(ModelError, match="as GGUF"):
        read_tensors(resolve(str(path)), torch.float32)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"without": "blk.0.attn_q.weight"}, r"self_attn\.q_proj\.weight is missing"),
        ({"without": "token_embd.weight"}, r"token_embd\.weight is missing"),
        ({"tensors": {"blk.0.ffn_gate_inp.weight": np.ones(2, np.float32)}}, "ffn_gate_inp"),
        ({"tensors": {"blk.0.attn_k.weight": np.ones((8, 32), np.float32)}}, r"\(8, 32\)"),
        ({"tensors": {"output_norm.weight": np.ones(32, np.int32)}}, "I32"),
    ],
)
def test_wrong_gguf_tensors_by_name(tiny_gguf, options, reason):
    with pytest.raises(ModelError, match=reason):
        _read(tiny_gguf(**options))
