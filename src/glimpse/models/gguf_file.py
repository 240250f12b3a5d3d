"""The header of a GGUF file, and its tensors as stored or dequantised."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from glimpse.models.errors import ModelError

# What the reader runs into on a file that is cut short or is something else.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, OverflowError, struct.error)


class GGUFFile:
    """Metadata and tensor table of one GGUF file; tensor data stays on disk until asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = _Reader(path)
            self.metadata = {
                name: field.contents()
                for name, field in reader.fields.items()
                # The vocabulary is the tokenizer's business, and large.
                if not (
                    name.startswith("tokenizer.") and field.types[0] == gguf.GGUFValueType.ARRAY
                )
            }
        except _UNREADABLE as error:
            raise ModelError(f"cannot read {path} as GGUF (cut short?): {error}") from error
        if reader.byte_order != "I":
            raise ModelError(f"{path} is in the byte order of another kind of machine")
        if self.metadata.get("split.count", 1) > 1:
            raise ModelError(f"{path} is one of {self.metadata['split.count']} parts; merge them")
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first, as in PyTorch; GGUF itself writes the fastest dimension first."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def stored(self, name: str) -> tuple[str, np.ndarray[Any, Any]]:
        """A tensor as it lies in the file: the name of its type, and its values or block bytes."""
        tensor = self.tensors[name]
        return tensor.tensor_type.name, tensor.data

    def dequantized(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's values, float32. Raises ModelError for a type without a dequantiser."""
        tensor = self.tensors[name]
        try:
            values: np.ndarray[Any, Any] = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: tensor {name!r} has type {tensor.tensor_type.name}, which the gguf"
                " package cannot dequantise"
            ) from error
        # Unquantised data is a view of the read-only file.
        return values if values.flags.writeable else values.copy()


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The package's reader with its slow part replaced: it makes arrays for every single element of
    an array, and a vocabulary has many. Without this hook the result is the same, seconds later.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[gguf.GGUFValueType]]:
        if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            parts: tuple[int, list[Any], list[int], list[gguf.GGUFValueType]]
            parts = super()._get_field_parts(orig_offs, raw_type)
            return parts
        item_code, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item_type, count, start = (
            gguf.GGUFValueType(int(item_code[0])),
            int(length[0]),
            orig_offs + 12,
        )
        types = [gguf.GGUFValueType.ARRAY, item_type]
        if item_type == gguf.GGUFValueType.STRING:
            end, strings = _strings(memoryview(self.data), start, count)
            return end - orig_offs, [item_code, length, *strings], list(range(2, 2 + count)), types
        values = self._get(start, self.gguf_scalar_to_np[item_type], count)
        return 12 + values.nbytes, [item_code, length, values], [2], types


def _strings(data: memoryview, offset: int, count: int) -> tuple[int, list[memoryview]]:
    """``count`` strings with 64-bit lengths, from ``offset`` on, and where they end."""
    strings = []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", data, offset)
        strings.append(data[offset + 8 : offset + 8 + size])
        offset += 8 + size
    return offset, strings
