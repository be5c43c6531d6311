"""Exceptions kept in executor futures, and whether anybody ever looked at them."""

import functools
import itertools
import sys
from typing import Any

from ..errors import record_error
from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable

_MODULE = "concurrent.futures._base"
_NUMBER = "_compile_race_number"
_READ = "_compile_race_read"


class Futures:
    """Wraps ``Future.set_exception``, ``Future.result`` and ``Future.exception``.

    An executor keeps a call's exception in its future, and a program that never asks for the
    result never learns of it. Asking in whatever way counts: ``result()``, ``exception()``,
    ``Executor.map``, asyncio (which copies the exception over).
    """

    name = "futures"
    modules: tuple[str, ...] = (_MODULE,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Patch the class."""
        del settings
        future: Any = sys.modules[_MODULE].__dict__.get("Future")
        for method in ("set_exception", "result", "exception"):
            if not callable(getattr(future, method, None)):
                raise Unavailable(f"{_MODULE}.Future has no {method}")
        _watch_failures(future, recorder)
        _watch_reads(future, recorder)


def _watch_failures(future: Any, recorder: Recorder) -> None:
    numbers = itertools.count(1)
    set_exception = future.set_exception

    @functools.wraps(set_exception)
    def recorded_set_exception(self: Any, exception: BaseException | None) -> None:
        if isinstance(exception, BaseException):
            # Before the future is told, since a reader may be waiting for it.
            number = next(numbers)
            if record_error(recorder, "future", exception, number):
                self.__dict__[_NUMBER] = number
        set_exception(self, exception)

    future.set_exception = recorded_set_exception


def _watch_reads(future: Any, recorder: Recorder) -> None:
    result, exception = future.result, future.exception

    def note(self: Any) -> None:
        number = self.__dict__.get(_NUMBER)
        if number is not None and not self.__dict__.get(_READ) and self.done():
            self.__dict__[_READ] = True
            recorder.emit("future_read", {"future": number})

    @functools.wraps(result)
    def recorded_result(self: Any, timeout: float | None = None) -> Any:
        try:
            return result(self, timeout)
        except BaseException:
            note(self)
            raise

    @functools.wraps(exception)
    def recorded_exception(self: Any, timeout: float | None = None) -> Any:
        error = exception(self, timeout)
        if error is not None:
            note(self)
        return error

    future.result = recorded_result
    future.exception = recorded_exception


PROBE: Any = Futures()
