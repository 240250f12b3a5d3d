"""``glimpse generate``: one text from a prompt, or an answer about a document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from glimpse.cli import options
from glimpse.cli.options import console
from glimpse.llm import LLM, Event, Generation
from glimpse.methods import get_method
from glimpse.stats import Stats


def generate(
    model: options.Model = "smollm2-135m",
    prompt: options.Prompt = None,
    file: options.File = None,
    ask: Annotated[
        str | None,
        typer.Option(help="A question, through the chat template; with or without --file."),
    ] = None,
    max_tokens: options.MaxTokens = 256,
    min_tokens: Annotated[int, typer.Option(help="No stop before this many tokens.")] = 0,
    temperature: options.Temperature = None,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens; 0 is all.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest mass p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop what is below min_p x the top.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    presence_penalty: Annotated[float | None, typer.Option()] = None,
    frequency_penalty: Annotated[float | None, typer.Option()] = None,
    seed: options.Seed = None,
    n: Annotated[int, typer.Option("-n", help="Texts to sample; the prompt is read once.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past eos.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="With --json: this many per token.")] = None,
    method: options.MethodName = "sparsespec-l",
    selection: options.Selection = None,
    controller: options.Controller = None,
    acceptance: options.Acceptance = None,
    budget: options.Budget = None,
    runner: options.Runner = "auto",
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = None,
    activations: options.Activations = None,
    draft_model: options.DraftModel = None,
    draft_head: options.DraftHead = None,
    cost_table: options.CostTable = None,
    json: options.Json = False,
) -> None:
    """Generate text. Streams to standard output; Ctrl-C keeps what is there."""
    chosen = get_method(
        method, selection=selection, controller=controller, acceptance=acceptance, budget=budget
    )
    sampling = options.sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        n=n,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    text = options.text_of(prompt, file, ask)
    llm = options.load(
        model,
        [chosen],
        cost_table,
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
    _show_defaults(llm)
    prompt_ids = options.token_ids(llm, text, is_chat=ask is not None)
    with options.progress_bars("reading") as (progress,):
        events = llm.stream([prompt_ids], params, progress=progress)
        generations = _follow(events, params.seed or 0, echo=not json)
    options.save_costs(llm, cost_table)
    if json:
        first, *others = [_as_dict(generation) for generation in generations]
        options.print_json({**first, "others": others} if others else first)


def _show_defaults(llm: LLM) -> None:
    if llm.defaults.sampling:
        shown = ", ".join(f"{name}={value}" for name, value in llm.defaults.sampling.items())
        console.print(f"the model's own defaults: {shown}", style="dim", markup=False)


def _follow(events: Iterator[Event], seed: int, *, echo: bool) -> list[Generation]:
    """Run to the end or to Ctrl-C, streaming the first text; all texts, as far as they got."""
    last: dict[int, Event] = {}
    shown = ""
    try:
        for event in events:
            last[event.choice] = event
            if echo and event.choice == 0:
                shown += event.text
                sys.stdout.write(event.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        console.print("\ninterrupted: what was generated is kept", style="yellow")
    generations = [last[choice].generation for choice in sorted(last)]
    if not generations:  # Interrupted while the prompt was read.
        generations = [Generation("", [], "abort", None, seed, [], Stats())]
    if echo:
        # An interrupt releases text that was held back, as it could have begun a stop string.
        sys.stdout.write(generations[0].text[len(shown) :])
        _print_rest(generations)
    return generations


def _print_rest(generations: list[Generation]) -> None:
    for number, generation in enumerate(generations):
        if number > 0:
            sys.stdout.write(f"\n--- {number + 1} ---\n{generation.text}")
        sys.stdout.write("\n")
        stats = generation.stats
        console.print(
            f"{stats.generated_tokens} tokens, {stats.decode_tokens_per_s:.1f} tokens/s, "
            f"{stats.acceptance_rate:.0%} of {stats.drafted} drafted accepted, "
            f"repetition {stats.repetition:.0%}, {stats.total_s:.1f} s in all "
            f"(prefill {stats.prefill_s:.1f} s), seed {generation.seed}, "
            f"finish reason: {generation.finish_reason}",
            style="dim",
            highlight=False,
        )


def _as_dict(generation: Generation) -> dict[str, Any]:
    return {
        "text": generation.text,
        "token_ids": generation.token_ids,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
        "seed": generation.seed,
        "logprobs": [asdict(entry) for entry in generation.logprobs],
        "stats": generation.stats.as_dict(),
    }
