"""``glimpse chat``: a conversation, about a document if there is one; it is read once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from glimpse.cli import options
from glimpse.cli.options import console
from glimpse.llm import Event, Message
from glimpse.methods import get_method


def chat(
    model: options.Model = "smollm2-135m",
    file: options.File = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    method: options.MethodName = "sparsespec-l",
    budget: options.Budget = None,
    runner: options.Runner = "auto",
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = None,
    activations: options.Activations = None,
    draft_model: options.DraftModel = None,
    draft_head: options.DraftHead = None,
) -> None:
    """Talk to a model. Ctrl-C ends an answer, Ctrl-D or /quit the conversation."""
    document = options.read_document(file).strip() if file else None
    sampling = options.sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    chosen = get_method(method, budget=budget)
    llm = options.load(
        model,
        [chosen],
        method=chosen,
        runner=runner,
        device=device,
        dtype=dtype,
        threads=threads,
        kv_dtype=kv_dtype,
        activations=activations,
        draft_model=draft_model,
        draft_head=draft_head,
    )
    params = llm.sampling_params(**sampling)
    messages: list[Message] = []
    for question in _questions():
        is_first = document is not None and not messages
        text = f"{document}\n\n{question}" if is_first else question
        messages.append({"role": "user", "content": text})
        with options.progress_bars("reading") as (progress,):
            answer = _answer(llm.stream([llm.render(messages)], params, progress=progress))
        messages.append({"role": "assistant", "content": answer})


def _questions() -> Iterator[str]:
    """Questions from the terminal (or a pipe) until its end."""
    while True:
        if sys.stdin.isatty():
            console.print("[bold]>[/bold] ", end="")
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            return
        if not line or line.strip() == "/quit":
            return
        if line.strip():
            yield line.strip()


def _answer(events: Iterator[Event]) -> str:
    """Stream an answer and return it, as far as it got before Ctrl-C."""
    event = None
    try:
        for event in events:
            sys.stdout.write(event.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        console.print(" (interrupted)", style="yellow", end="")
    sys.stdout.write("\n")
    if event is None:
        return ""
    stats = event.sequence.stats
    console.print(
        f"{stats.generated_tokens} tokens, first after {stats.ttft_s:.1f} s, "
        f"{stats.decode_tokens_per_s:.1f} tokens/s, {stats.acceptance_rate:.0%} of drafts accepted",
        style="dim",
        highlight=False,
    )
    return event.sequence.text
