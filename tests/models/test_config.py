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
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": LLAMA3,
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


# ----------------------------------------------------------------------------------------- gguf


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

    rope = {**LLAMA3, "original_max_position_embeddings": 8192, "factor": 32.0}
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
