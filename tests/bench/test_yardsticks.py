"""What a plain token costs to read, and how fast this machine reads."""

from __future__ import annotations

from dataclasses import replace

import torch

from glimpse.bench import yardsticks
from glimpse.models import load_config


def test_bytes_of_a_plain_token_are_those_of_the_file(smollm2_files) -> None:
    config = load_config(smollm2_files)
    total = yardsticks.weight_bytes(smollm2_files, config)
    # Beside the tensors the file has a header of about 2 MB: the vocabulary.
    assert 0 < smollm2_files.weights[0].stat().st_size - total < 4e6
    assert yardsticks.kv_bytes_per_token(config) == 2 * 30 * 3 * 64 * 2


def test_an_untied_input_embedding_is_not_read(smollm2_files) -> None:
    tied = load_config(smollm2_files)
    untied = replace(tied, has_tied_embeddings=False)
    embedding = smollm2_files.gguf.stored("token_embd.weight")[1].nbytes
    difference = yardsticks.weight_bytes(smollm2_files, tied) - yardsticks.weight_bytes(
        smollm2_files, untied
    )
    assert difference == embedding > 0


def test_bandwidth_is_measured_with_the_threads_asked_for_and_leaves_them_as_they_were() -> None:
    before = torch.get_num_threads()
    assert 1e8 < yardsticks.read_bandwidth(before + 1, num_bytes=2**24, repeats=2) < 1e13
    assert torch.get_num_threads() == before


def test_limit_ratio_is_one_where_every_byte_is_read_once_at_full_speed() -> None:
    assert yardsticks.limit_ratio(50.0, token_bytes=2e6, bandwidth=1e8) == 1.0
