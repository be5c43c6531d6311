"""Thread starts and ends, and the exceptions that end threads and the main program."""

import functools
import itertools
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..errors import error_number, record_error
from ..privacy import mask_name
from ..recorder import Recorder
from ..settings import Settings
from ..stacks import user_stack
from . import Unavailable

# The starts of so many threads are written at once, a later one's once the thread has something to
# say: a program may make threads all night, and those that never do anything of note are many.
_STARTS = 2048


class Threads:
    """Wraps ``Thread.start``, the end of a thread and both kinds of excepthook."""

    name = "threads"
    modules: tuple[str, ...] = ()

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Patch ``threading`` and ``sys.excepthook``."""
        del settings
        for symbol, owner in (
            ("_make_invoke_excepthook", threading),
            ("_delete", threading.Thread),
        ):
            if not callable(getattr(owner, symbol, None)):
                raise Unavailable(f"threading has no {symbol}")
        _watch_starts(recorder)
        _watch_ends(recorder)
        _watch_errors(recorder)
        MainErrors(recorder).watch()


def _watch_starts(recorder: Recorder) -> None:
    start = threading.Thread.start
    numbers = itertools.count(1)

    @functools.wraps(start)
    def recorded_start(self: threading.Thread) -> None:
        where = user_stack()
        number = next(numbers)
        if recorder.schedule is not None:
            recorder.schedule.number_thread(self)
        name = mask_name(self.name)
        data: dict[str, Any] = {"name": name, "daemon": self.daemon, "number": number}
        # One that is started twice has an id already, and start() refuses it.
        if number > _STARTS and self.ident is None:
            recorder.hold_start(self, data, where)
            start(self)
            return
        start(self)
        # start() returns once the new thread runs, so its native id is known.
        child = {"child_tid": self.native_id, "child_ident": self.ident}
        recorder.emit("thread_start", {**child, **data}, where=where)

    threading.Thread.start = recorded_start  # type: ignore[method-assign]


def _watch_ends(recorder: Recorder) -> None:
    # The last thing that a thread does in Python before join() can return; run() may be overridden.
    delete: Callable[[threading.Thread], None] = threading.Thread._delete  # type: ignore[attr-defined]  # noqa: SLF001

    @functools.wraps(delete)
    def recorded_delete(self: threading.Thread) -> None:
        if not recorder.start_is_held(self):
            recorder.emit("thread_end")
        delete(self)

    threading.Thread._delete = recorded_delete  # type: ignore[attr-defined]  # noqa: SLF001


def _watch_errors(recorder: Recorder) -> None:
    # Each Thread object gets from here what it calls when run() raises; that looks up the program's
    # threading.excepthook at the time. Setting threading.excepthook instead would be undone by a
    # program that sets its own, and would hide from it which hook was there.
    make: Callable[[], Callable[[threading.Thread], None]]
    make = threading._make_invoke_excepthook  # type: ignore[attr-defined]  # noqa: SLF001

    @functools.wraps(make)
    def recorded_make() -> Callable[[threading.Thread], None]:
        invoke = make()

        def invoke_excepthook(thread: threading.Thread) -> None:
            error = sys.exception()
            # threading ignores SystemExit in a thread: it is a way to end one.
            if error is not None and not isinstance(error, SystemExit):
                record_error(recorder, "thread", error)
            invoke(thread)

        return invoke_excepthook

    threading._make_invoke_excepthook = recorded_make  # type: ignore[attr-defined]  # noqa: SLF001


class MainErrors:
    """Sees the main program's uncaught exception.

    ``sys.excepthook`` is wrapped, but a program may set its own afterwards. An audit hook would
    see that too, at the cost of a Python call for every ``id()`` in the process. Instead the
    interpreter's own note is read at the end: it sets ``sys.last_exc`` (``sys.last_value`` before
    Python 3.12) before it calls any hook.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: int | None = None

    def watch(self) -> None:
        """Wrap ``sys.excepthook``; the hook that was there is called as before."""
        before = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            self._record(error)
            before(kind, error, traceback)

        sys.excepthook = excepthook
        earlier = _last_error()
        self._seen = None if earlier is None else error_number(earlier)
        self._recorder.at_end.append(self.record_unseen)

    def record_unseen(self) -> None:
        """Record the uncaught exception if the program had replaced our hook."""
        error = _last_error()
        if error is not None and _left_the_program(error):
            self._record(error)

    def _record(self, error: BaseException) -> None:
        # Ctrl-C is not the program's error, and the exit code already tells of SystemExit.
        if isinstance(error, SystemExit):
            return
        if isinstance(error, KeyboardInterrupt):
            from ..interrupted import is_raised_by_program  # not needed by most

            if not is_raised_by_program(error):
                return
        number = error_number(error)
        if self._seen != number:
            self._seen = number
            record_error(self._recorder, "main", error)


def _last_error() -> BaseException | None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _left_the_program(error: BaseException) -> bool:
    """Whether an exception went through the main module; test runners set ``last_exc`` too."""
    traceback = error.__traceback__
    if traceback is None:
        return False
    frame = traceback.tb_frame
    code, names = frame.f_code, frame.f_globals
    in_main = names.get("__name__") == "__main__" and code.co_name == "<module>"
    return in_main or code.co_filename == "<frozen runpy>"


PROBE: Any = Threads()
