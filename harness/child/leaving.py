"""What a program said when it left by ``sys.exit("text")``."""

import functools
import sys
import threading
from typing import Any

_MAX_TEXT = 2000


class Leaving:
    """Remembers the text that the main thread last gave to ``sys.exit``.

    The interpreter tells nobody of a SystemExit: it calls no excepthook, sets no
    ``sys.last_value`` and has dropped the exception before exit handlers run (CPython:
    ``_Py_HandleSystemExit`` in ``Python/pythonrun.c``). So the call is watched. A program may catch
    the exception and go on; its exit code tells.

    Attributes:
        text: empty if there was none, or the program was left with a code.
    """

    def __init__(self) -> None:
        self.text = ""

    def watch(self) -> None:
        """Wrap ``sys.exit``."""
        leave: Any = sys.exit

        @functools.wraps(leave)
        def watched_exit(*status: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                code = status[0] if status else None
                self.text = "" if code is None or isinstance(code, int) else _text(code)
            return leave(*status)

        sys.exit = watched_exit


def _text(code: object) -> str:
    try:
        text = str(code)
    except Exception as broken:  # noqa: BLE001 - an object's own __str__ may fail
        text = f"(its text cannot be read: {type(broken).__name__})"
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
