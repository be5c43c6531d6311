"""What shows the course of a run beside its numbers: a picture, and TensorBoard's scalars."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dflash_min.evaluation import plots, scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dflash_min.evaluation.scalars import Scalars
    from dflash_min.resolve import Resolved


class Curves:
    """Shows what `metrics.jsonl` of a run folder gets. For one thread at a time.

    A curve that cannot be written is told of in one line, and training goes on without it.
    """

    def __init__(self, out: Path, title: str, say: Callable[[str], None], *, drawn: bool) -> None:
        """Use `Curves.opened`."""
        self._out = out
        self._title = title
        self._say = say
        self._scalars: Scalars | None = None
        self._drawn = drawn

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, out: Path | None, resolved: Resolved, done: int, say: Callable[[str], None]
    ) -> Iterator[Curves | None]:
        """Show a run in its folder, before any thread of it starts; None without a folder.

        The picture is drawn at each evaluation and at the end, whatever the end is. Without
        matplotlib there is none, which is said; without tensorboard there are no scalars.

        Args:
            out: the run folder.
            resolved: the run.
            done: finished steps at the start.
            say: called with a line for the user.
        """
        if out is None:
            yield None
            return
        drawn = plots.available()
        if not drawn:
            say(f"no {plots.FILE}: matplotlib is not installed")
        curves = cls(out, plots.title(resolved), say, drawn=drawn)
        with curves._told(scalars.FOLDER):
            curves._scalars = scalars.open_scalars(out, done)
        try:
            yield curves
        finally:
            curves._draw()
            curves._to_scalars(lambda written: written.close())

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Show a line that has been written to metrics.jsonl; its arguments are the same."""
        self._to_scalars(lambda written: written.write(step, kind, values))
        if kind == "eval":
            self._to_scalars(lambda written: written.flush())
            self._draw()

    def _draw(self) -> None:
        if self._drawn:
            with self._told(plots.FILE):
                plots.draw(self._out, self._title)

    def _to_scalars(self, use: Callable[[Scalars], None]) -> None:
        if self._scalars is not None:
            written, self._scalars = self._scalars, None  # a writer that failed is given up
            with self._told(scalars.FOLDER):
                use(written)
                self._scalars = written

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # no curve is worth a run
            why = error.strerror if isinstance(error, OSError) else None
            said = why or " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"{self._out / name} cannot be written: {said}")
