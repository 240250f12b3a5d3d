"""What a model says about stopping and sampling: generation_config.json, or the GGUF header."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glimpse.config import SamplingParams
from glimpse.models.architectures import is_neutral
from glimpse.models.errors import ModelError, read_json
from glimpse.models.files import ModelFiles

logger = logging.getLogger(__name__)

# What transformers' generate samples with where the file is silent.
_SAMPLED = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
_IGNORED = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "top_h",
    "typical_p",
)


@dataclass(frozen=True)
class GenerationDefaults:
    """Token ids that end a text, and the ``SamplingParams`` fields that the model asks for."""

    eos_token_ids: frozenset[int] = frozenset()
    sampling: dict[str, Any] = field(default_factory=dict)


def load_generation_defaults(files: ModelFiles) -> GenerationDefaults:
    """As transformers' generate reads them: generation_config.json, or config.json without one.

    Settings there that ``SamplingParams`` does not have are logged and ignored. Raises ModelError
    for a value out of range.
    """
    if files.format == "gguf":
        names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        stated = [files.gguf.metadata[name] for name in names if name in files.gguf.metadata]
        return GenerationDefaults(_token_ids(files, stated))
    config = read_json(files.folder / "config.json")
    path = files.folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else config
    eos = generation.get("eos_token_id")
    eos_token_ids = _token_ids(files, config.get("eos_token_id") if eos is None else eos)
    return GenerationDefaults(eos_token_ids, _sampling(files, generation))


def _token_ids(files: ModelFiles, stated: Any) -> frozenset[int]:
    token_ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(isinstance(token_id, int) for token_id in token_ids):
        raise ModelError(f"model {files.name!r}: eos_token_id={stated!r} must be one id or a list")
    return frozenset(token_ids)


def _sampling(files: ModelFiles, generation: Mapping[str, Any]) -> dict[str, Any]:
    stated = {key: value for key, value in generation.items() if value is not None}
    sampling: dict[str, Any] = {}
    if stated.get("do_sample"):
        sampling = {name: stated.get(name, default) for name, default in _SAMPLED.items()}
    elif "do_sample" in stated:
        sampling = {"temperature": 0.0}
    if "repetition_penalty" in stated:
        sampling["repetition_penalty"] = stated["repetition_penalty"]
    for name in _IGNORED:
        if not is_neutral(stated.get(name)):
            logger.warning("%s: ignoring %s=%r of the model", files.name, name, stated[name])
    try:
        SamplingParams(**sampling)
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {files.name!r}: its generation defaults: {error}") from error
    return sampling
