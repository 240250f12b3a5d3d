"""A model's shape from a GGUF header, and what is refused."""

import pytest

from glimpse.config import ModelConfig, RopeConfig
from glimpse.models import ModelError, load_config, resolve


def _config(path):
    return load_config(resolve(str(path)))


def test_default_model(smollm2_files, smollm2_reference):
    config, reference = load_config(smollm2_files), smollm2_reference.config
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=reference.vocab_size,
        hidden_size=reference.hidden_size,
        intermediate_size=reference.intermediate_size,
        num_layers=reference.num_hidden_layers,
        num_query_heads=reference.num_attention_heads,
        num_kv_heads=reference.num_key_value_heads,
        head_dim=reference.head_dim,
        max_seq_len=reference.max_position_embeddings,
        rms_norm_eps=reference.rms_norm_eps,
        rope=RopeConfig("default", reference.rope_parameters["rope_theta"]),
        has_tied_embeddings=reference.tie_word_embeddings,
    )
    assert (config.num_layers, config.num_query_heads, config.num_kv_heads) == (30, 9, 3)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("llama", {"architecture": "LlamaForCausalLM"}),
        ("qwen2", {"architecture": "Qwen2ForCausalLM", "has_qkv_bias": True}),
        ("qwen3", {"architecture": "Qwen3ForCausalLM", "has_qk_norm": True}),
    ],
)
def test_gguf_families(tiny_gguf, architecture, expected):
    config = _config(tiny_gguf(architecture))
    assert config == ModelConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_layers=1,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_seq_len=128,
        rms_norm_eps=pytest.approx(1e-5),
        rope=RopeConfig("default", 20000.0),
        **expected,
    )


def test_gguf_tied_embeddings(tiny_gguf):
    assert _config(tiny_gguf(without="output.weight")).has_tied_embeddings


@pytest.mark.parametrize(
    ("settings", "rope"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, RopeConfig("default", 2e4)),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            RopeConfig("linear", 2e4, {"factor": 4.0}),
        ),
        ({"rope.scaling.factor": 4.0}, RopeConfig("linear", 2e4, {"factor": 4.0})),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
            | {"rope.scaling.original_context_length": 32},
            RopeConfig("yarn", 2e4, {"factor": 4.0, "original_max_position_embeddings": 32}),
        ),
    ],
)
def test_gguf_rotary_embeddings(tiny_gguf, settings, rope):
    assert _config(tiny_gguf(settings=settings)).rope == rope


def test_gguf_llama3_from_its_frequency_factors(tiny_gguf):
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    reference = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **rope},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference, "cpu")
    plain = 1.0 / (5e5 ** (torch.arange(0, 64, 2).float() / 64))
    settings = {"attention.key_length": 64, "rope.freq_base": 5e5}
    divisors = (plain / scaled).float()
    assert ((divisors > 1.1) & (divisors < 31)).any()  # some lie on the smooth part
    path = tiny_gguf(settings=settings, tensors={"rope_freqs.weight": divisors.numpy()})
    assert _config(path).rope == RopeConfig("llama3", 5e5, rope)


def test_gguf_other_frequency_factors_are_refused(tiny_gguf):
    import numpy as np

    factors = {"rope_freqs.weight": np.array([1.0, 1.5, 2.0, 2.5], np.float32)}
    with pytest.raises(ModelError, match=r"rope_freqs\.weight\[1\]=1\.5"):
        _config(tiny_gguf(tensors=factors))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"expert_count": 8}, r"mixture of experts \(expert_count=8\)"),
        ({"attention.sliding_window": 64}, "sliding window attention"),
        ({"rope.dimension_count": 4}, r"partial rotary embedding \(4 of 8 dimensions\)"),
        ({"attn_logit_softcapping": 50.0}, "attention softcap"),
        ({"logit_scale": 0.5}, "logits scaling"),
        ({"some.novelty": 3}, r"some\.novelty=3"),
        ({"rope.scaling.type": "longrope"}, "'longrope' is not supported"),
        ({"attention.head_count_kv": [1, 2]}, "layers that differ in attention.head_count_kv"),
        ({"attention.value_length": 16}, "values of 16 dimensions with keys of 8"),
        ({"block_count": None}, "no block_count"),
    ],
)
def test_gguf_unsupported_features_by_name(tiny_gguf, settings, reason):
    with pytest.raises(ModelError, match=reason):
        _config(tiny_gguf(settings=settings))


def test_gguf_window_as_long_as_the_context_is_no_window(tiny_gguf):
    assert _config(tiny_gguf(settings={"attention.sliding_window": 128})).max_seq_len == 128


def test_gguf_unknown_architecture(tiny_gguf):
    with pytest.raises(ModelError, match="'gemma2' is not supported; valid: llama, qwen2, qwen3"):
        _config(tiny_gguf("gemma2"))
