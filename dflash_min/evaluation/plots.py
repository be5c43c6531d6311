"""The curve of a run as a picture: loss and accept_len over steps, in training and held out.

Matplotlib's figures are used as objects, without pyplot and without changing its settings: both
belong to the whole process, and the picture is drawn on a thread of the trainer.
"""

from __future__ import annotations

import importlib.util
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dflash_min.saving import metrics
from dflash_min.saving.durable import new_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from dflash_min.resolve import Resolved

FILE: Final = "loss.png"

_SMOOTHED_FROM: Final = 60
"""Points from which on a mean is drawn over the single steps, which then hide each other."""
# Blue and vermilion of Okabe and Ito's palette, which colour-blind readers tell apart.
_TRAIN: Final = "#0072B2"
_HELD_OUT: Final = "#D55E00"


@dataclass(frozen=True)
class Curve:
    """Points of one line, in order of step."""

    steps: list[int]
    values: list[float]


def available() -> bool:
    """Import matplotlib, if it is installed; to be called before threads start."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401

    return True


def draw(out: Path, title: str) -> None:
    """Draw `loss.png` from the `metrics.jsonl` of a run folder, replacing an older one at once.

    Args:
        out: the run folder.
        title: its lines stand above the picture.

    Raises:
        OSError: if a file cannot be read or written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = metrics.read(out / metrics.FILE)
    figure = Figure(figsize=(8, 6.5))
    canvas = FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.1, right=0.8, top=0.88, bottom=0.09, hspace=0.12)
    figure.suptitle(title, x=0.1, y=0.97, ha="left", va="top", fontsize=10)
    _panel(above, lines, "loss", "loss (nats per token, weighted)")
    _panel(below, lines, "accept_len", "accept_len (tokens per block)")
    below.set_xlabel("optimiser step")
    below.xaxis.get_major_locator().set_params(integer=True)
    picture = io.BytesIO()
    canvas.print_png(picture)  # type: ignore[no-untyped-call]
    with new_file(out / FILE) as file:
        file.write(picture.getvalue())


def title(resolved: Resolved) -> str:
    """Return the run's main settings in two lines."""
    model = resolved.model
    target = resolved.target or "the built-in target with random weights"
    return (
        f"DFlash drafter of {model.layers} layers, width {model.hidden}, blocks of "
        f"{model.block_size}, for {target}\n"
        f"{resolved.steps} steps, drafters {len(resolved.layout.drafters)}, batch "
        f"{resolved.batch_size}, anchors {resolved.anchors}, peak lr {resolved.lr:g}, "
        f"seed {resolved.seed}"
    )


def _panel(axes: Axes, lines: Sequence[dict[str, Any]], name: str, label: str) -> None:
    """Draw one figure over the steps, each line labelled at its end."""
    ends: list[tuple[Curve, str, str]] = []
    train, held_out = _curve(lines, "train", name), _curve(lines, "eval", name)
    if train.steps:
        width = (
            len(train.steps) // (_SMOOTHED_FROM // 3) if len(train.steps) >= _SMOOTHED_FROM else 1
        )
        axes.plot(train.steps, train.values, color=_TRAIN, lw=0.8, alpha=0.35 if width > 1 else 1)
        if width > 1:
            train = _smoothed(train, width)
            axes.plot(train.steps, train.values, color=_TRAIN, lw=1.6)
        ends.append(
            (train, "training" + (f",\nmean of {width} steps" if width > 1 else ""), _TRAIN)
        )
    if held_out.steps:
        axes.plot(held_out.steps, held_out.values, color=_HELD_OUT, lw=1.6, marker="o", ms=4)
        ends.append((held_out, "held out", _HELD_OUT))
    highest = max((curve.values[-1] for curve, _, _ in ends), default=0.0)
    for curve, text, color in ends:
        # The upper line's label goes up from its end and the other's down: they cannot meet.
        up = curve.values[-1] == highest
        axes.annotate(
            text,
            (curve.steps[-1], curve.values[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center" if len(ends) == 1 else "bottom" if up else "top",
            color=color,
            annotation_clip=False,
        )
    axes.set_ylabel(label)
    axes.margins(y=0.15)
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _curve(lines: Sequence[dict[str, Any]], kind: str, name: str) -> Curve:
    points = [
        (line["step"], line[name])
        for line in lines
        if line["kind"] == kind and isinstance(line.get(name), int | float)
    ]
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    return Curve([step for step, _ in finite], [value for _, value in finite])


def _smoothed(curve: Curve, width: int) -> Curve:
    """Return the means of every `width` points in a row, at the last of them."""
    sums = [0.0]
    for value in curve.values:
        sums.append(sums[-1] + value)
    means = [(sums[i] - sums[i - width]) / width for i in range(width, len(sums))]
    return Curve(curve.steps[width - 1 :], means)
