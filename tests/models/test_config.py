"""A model's shape from config.json and GGUF headers, and what is refused."""

import pytest

from glimpse.config import ModelConfig, RopeConfig
from glimpse.models import ModelError, load_config, resolve

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_seq_len": 512,
    "rms_norm_eps": 1e-6,
}
FAMILIES = {
    "llama": {"architecture": "LlamaForCausalLM"},
    "mistral": {"architecture": "MistralForCausalLM"},
    "qwen2": {"architecture": "Qwen2ForCausalLM", "has_qkv_bias": True},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "has_qk_norm": True, "head_dim": 16},
}
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 64},
}


def _config(folder):
    return load_config(resolve(str(folder)))


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_rotary_embeddings(tiny_checkpoint, family, rope):
    expected = ModelConfig(
        **{**SHAPE, **FAMILIES[family]}, rope=RopeConfig(rope, 10000.0, ROPES[rope])
    )
    assert _config(tiny_checkpoint(family, rope=rope)) == expected


def test_biases_and_tied_embeddings(tiny_checkpoint):
    config = _config(
        tiny_checkpoint("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    )
    assert config.has_qkv_bias
    assert config.has_output_bias
    assert config.has_mlp_bias
    assert config.has_tied_embeddings


@pytest.mark.parametrize("rope", ["linear", "llama3", "yarn"])
def test_rope_as_older_files_write_it(tiny_checkpoint, edit_json, rope):
    folder = tiny_checkpoint("llama")
    old = {"type": rope, **ROPES[rope]}
    edit_json(folder / "config.json", rope_parameters=None, rope_theta=5e5, rope_scaling=old)
    assert _config(folder).rope == RopeConfig(rope, 5e5, ROPES[rope])


def test_yarn_extends_a_context_that_is_stated_unscaled(tiny_checkpoint):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    rope["original_max_position_embeddings"] = 512
    assert _config(tiny_checkpoint("qwen2", rope_parameters=rope)).max_seq_len == 2048


def test_architecture_of_a_config_that_names_none(tiny_checkpoint, edit_json):
    folder = tiny_checkpoint("qwen2")
    edit_json(folder / "config.json", architectures=None)
    assert _config(folder).architecture == "Qwen2ForCausalLM"


# -------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"hidden_act": "gelu"}, r"activation 'gelu' \(valid: silu\)"),
        ("llama", {"num_local_experts": 8}, r"mixture of experts \(num_local_experts=8\)"),
        ("llama", {"kv_lora_rank": 512}, r"multi-head latent attention \(kv_lora_rank=512\)"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attention softcap"),
        ("llama", {"final_logit_softcapping": 30.0}, "logits softcap"),
        ("llama", {"logits_scaling": 8.0}, "logits scaling"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantized weights"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
        ("llama", {"head_dim": 7}, "head_dim"),
        ("mistral", {"sliding_window": 128}, r"sliding window attention \(sliding_window=128\)"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
            | {"layer_types": ["full_attention", "sliding_attention"]},
            r"sliding window attention \(sliding_window=64\)",
        ),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_unsupported_features_by_name(tiny_checkpoint, edit_json, family, changes, reason):
    folder = tiny_checkpoint(family)
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=reason) as caught:
        _config(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rope", "reason"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' is not supported; valid: default, "),
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
            "'longrope' is not supported",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"rope_type": "yarn", "factor": 2.0, "beta": 3}, "no parameter 'beta'; valid: attention_"),
        ({"rope_type": "linear"}, "factor"),
    ],
)
def test_unsupported_rotary_embeddings_by_name(tiny_checkpoint, edit_json, rope, reason):
    folder = tiny_checkpoint("llama")
    edit_json(folder / "config.json", rope_parameters={"rope_theta": 1e4, **rope})
    with pytest.raises(ModelError, match=reason):
        _config(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
            | {"num_local_experts": 8},
            r"MixtralForCausalLM with mixture of experts .* valid: LlamaForCausalLM, Mistral",
        ),
        ({"architectures": ["LlamaModel"]}, "architecture LlamaModel is not supported"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "Qwen2ForSequenceClassification"),
        ({"architectures": None, "model_type": "nonsense"}, "model_type='nonsense'"),
        ({"architectures": None, "model_type": None}, "model_type=None"),
    ],
)
def test_unknown_architecture(tiny_checkpoint, edit_json, changes, reason):
    folder = tiny_checkpoint("llama")
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=reason):
        _config(folder)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 512}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
        ("llama", {"num_local_experts": 0, "attn_logit_softcapping": None, "logits_scaling": 1.0}),
    ],
)
def test_features_that_are_off_are_no_reason(tiny_checkpoint, edit_json, family, changes):
    folder = tiny_checkpoint(family)
    expected = _config(folder)
    edit_json(folder / "config.json", **changes)
    assert _config(folder) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "llama", "hidden_size": "big"}'])
def test_broken_config(tiny_checkpoint, text):
    folder = tiny_checkpoint("llama")
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        _config(folder)
