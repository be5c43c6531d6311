"""What rich shows on a terminal for as long as something goes on."""

from types import TracebackType
from typing import Generic, Self, TypeVar

from rich.live import Live
from rich.progress import Progress
from rich.status import Status

Shown = TypeVar("Shown", Progress, Status, Live)


class Display(Generic[Shown]):
    """Starts and stops what rich shows; a context manager. Off a terminal there is nothing."""

    def __init__(self, shown: Shown | None) -> None:
        self._shown: Shown | None = shown

    def __enter__(self) -> Self:
        if self._shown is not None:
            self._shown.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown.stop()
