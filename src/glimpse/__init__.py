"""Faster long-context LLM decoding with the same output."""
