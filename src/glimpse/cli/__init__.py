"""The ``glimpse`` command: one file per subcommand, errors as one clear line with exit code 2."""

from __future__ import annotations

import logging
import sys

import typer
from rich.console import Console
from rich.logging import RichHandler

from glimpse.cli.bench import bench
from glimpse.cli.chat import chat
from glimpse.cli.compare import compare
from glimpse.cli.doctor import doctor
from glimpse.cli.generate import generate
from glimpse.cli.methods import methods
from glimpse.cli.plan import plan

app = typer.Typer(
    name="glimpse",
    help="Faster long-context LLM decoding with the same output.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (generate, compare, chat, bench, plan, methods, doctor):
    app.command()(command)


def main() -> None:
    """Entry point. Bad models, files and options are ValueError or OSError: exit code 2."""
    console = Console(stderr=True)
    logging.basicConfig(
        format="%(message)s",
        level=logging.WARNING,
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    try:
        app()
    except (ValueError, OSError) as error:
        console.print(f"error: {' '.join(str(error).split())}", style="red", markup=False)
        sys.exit(2)
