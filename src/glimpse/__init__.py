"""Faster long-context LLM decoding with the same output: SparseSpec-L self-speculation."""

from glimpse.config import Method, SamplingParams
from glimpse.llm import LLM, Event, Generation

__version__ = "0.1.0"
__all__ = ["LLM", "Event", "Generation", "Method", "SamplingParams"]
