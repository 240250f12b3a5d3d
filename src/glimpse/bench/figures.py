"""Figures, drawn from results and predictions; the only place that imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glimpse.efficiency import Prediction


def plan_figure(path: Path, title: str, predictions: Sequence[Prediction]) -> None:
    """Predicted speed-up and best draft length against context, one line per batch.

    The format is that of the file's suffix. Raises ValueError for one that cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a figure needs matplotlib: pip install 'glimpse-llm[plot]' ({error})"
        ) from None
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    valid = FigureCanvasAgg(figure).get_supported_filetypes()
    if path.suffix[1:] not in valid:
        raise ValueError(f"figure {path}: the suffix must be one of {', '.join(sorted(valid))}")
    speed, length = figure.subplots(1, 2)
    for batch in dict.fromkeys(prediction.batch for prediction in predictions):
        rows = [prediction for prediction in predictions if prediction.batch == batch]
        contexts = [row.context for row in rows]
        (line,) = speed.plot(contexts, [row.speedup for row in rows], "o-", label=f"batch {batch}")
        speed.plot(contexts, [row.limit for row in rows], ":", color=line.get_color())
        length.plot(contexts, [row.k for row in rows], "o-", color=line.get_color())
    speed.axhline(1, color="grey", linewidth=0.8)
    speed.set(ylabel="speed-up over plain decoding (dotted: all accepted)", ylim=(0, None))
    length.set(ylabel="best draft length", ylim=(0, None))
    for axes in (speed, length):
        axes.set_xscale("log", base=2)
        axes.set_xticks(contexts, [f"{n / 1024:g}k" for n in contexts])
        axes.set_xlabel("context (tokens)")
        axes.grid(alpha=0.3)
    speed.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
