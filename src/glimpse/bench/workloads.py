"""Documents and questions for runs: real prose that every CPython carries, fixed before measuring.

``python -m glimpse.bench.workloads --tokens 7000`` writes one such document to standard output.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Annotated

import typer

from glimpse.models import Tokenizer, load_tokenizer, resolve


@dataclass(frozen=True)
class Example:
    """A question about a stretch of the Python language reference that begins at ``topic``."""

    name: str
    topic: str
    question: str


LANGUAGE_REFERENCE = (
    Example(
        "types",
        "types",
        "Which kinds of objects does the text describe? Explain three of them in detail.",
    ),
    Example(
        "compound",
        "compound",
        "Summarise how the try statement and the with statement work, and when each is used.",
    ),
    Example(
        "specialnames",
        "specialnames",
        "How can a class customise attribute access and comparison? Explain with examples.",
    ),
    Example(
        "formatstrings",
        "formatstrings",
        "Write a short tutorial on formatting numbers and text, based on the text above.",
    ),
    Example(
        "string-methods",
        "string-methods",
        "Which string methods search, split or join text? Explain what each of them does.",
    ),
)


def document(topic: str, tokenizer: Tokenizer, num_tokens: int) -> str:
    """The language reference from ``topic`` on, in alphabetical order, cut to ``num_tokens``."""
    names = sorted(topics)
    start = names.index(topic)
    text = "\n\n".join(topics[name] for name in names[start:] + names[:start])
    # No tokenizer makes more tokens than there are bytes: this stretch is always enough.
    token_ids = tokenizer.encode(text[: 8 * num_tokens], add_special_tokens=False)
    if len(token_ids) < num_tokens:
        raise ValueError(f"num_tokens={num_tokens}: the reference has {len(token_ids)} at most")
    return tokenizer.decode(token_ids[:num_tokens]).rstrip("\ufffd")


def prompt(example: Example, tokenizer: Tokenizer, num_tokens: int) -> list[int]:
    """The document and then the question, as a user's message in the chat template."""
    text = f"{document(example.topic, tokenizer, num_tokens)}\n\n{example.question}"
    return tokenizer.chat([{"role": "user", "content": text}])


def main(
    tokens: Annotated[int, typer.Option(min=1, help="Length of the document.")] = 7000,
    topic: Annotated[str, typer.Option(help="Topic of the reference to begin at.")] = "types",
    model: Annotated[str, typer.Option(help="Whose tokens to count.")] = "smollm2-135m",
) -> None:
    """Write a document of a given number of tokens to standard output."""
    if topic not in topics:
        raise typer.BadParameter(f"{topic!r}; valid: {', '.join(sorted(topics))}")
    sys.stdout.write(document(topic, load_tokenizer(resolve(model)), tokens))


if __name__ == "__main__":
    typer.run(main)
