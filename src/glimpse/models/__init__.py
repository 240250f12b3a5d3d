"""Find and read models: a built-in alias, a hub id, a local folder or a GGUF file.

Everything that is wrong with a model is a ``ModelError`` of one line. Nothing here runs a model.
"""

from glimpse.models.config import load_config
from glimpse.models.errors import ModelError
from glimpse.models.fetch import ALIASES, cache_folder
from glimpse.models.files import ModelFiles, resolve
from glimpse.models.generation import GenerationDefaults, load_generation_defaults
from glimpse.models.heads import load_head
from glimpse.models.tensors import (
    StoredTensor,
    dequantized_tensor,
    plain_tensor,
    read_tensors,
    stored_tensors,
    tensor_shapes,
)
from glimpse.models.tokenizer import Tokenizer, load_tokenizer, require_same_tokens

__all__ = [
    "ALIASES",
    "GenerationDefaults",
    "ModelError",
    "ModelFiles",
    "StoredTensor",
    "Tokenizer",
    "cache_folder",
    "dequantized_tensor",
    "load_config",
    "load_generation_defaults",
    "load_head",
    "load_tokenizer",
    "plain_tensor",
    "read_tensors",
    "require_same_tokens",
    "resolve",
    "stored_tensors",
    "tensor_shapes",
]
