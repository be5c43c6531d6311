"""Outlives the parent: a small process that ends the program if the parent is killed.

Run as a script with ``python -I -S``, so that waiting costs neither start-up time nor memory. It
reads JSON lines from its standard input: first what is needed to finish the run (``folder``,
``mark``, ``path`` and more: ``harness.supervise.aftermath``), then ``{"pid": ...}`` once the
program runs, and ``{"goodbye": true}`` when the parent has seen its end. The end of the input
without a goodbye means that the parent is gone.
"""

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any

_DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE)
# A process that the parent has forked may hold the other end of the pipe open for longer than the
# parent lives, so now and then the parent is looked for as well.
_LOOK_EVERY_MS = 2000
FAILURE = "guardian-failure.txt"


def main() -> None:
    """Wait for the parent's goodbye or its end, and in the second case end the program."""
    for number in _DEAF_TO:  # they are for the parent, which tells us what comes of them
        signal.signal(number, signal.SIG_IGN)
    told = listen(0, os.getppid())
    if told.get("goodbye") or not told.get("mark"):
        return
    sys.path[:] = told["path"]
    try:
        from harness.supervise.aftermath import finish

        finish(told)
    except Exception as error:  # noqa: BLE001 - the harness may be gone from the disk by now
        _end_group(told.get("pid"))
        _write_down(told["folder"], error)


def listen(descriptor: int, parent: int) -> dict[str, Any]:
    """Read messages until a goodbye, the end of the input or the parent's; return all they say."""
    told: dict[str, Any] = {}
    rest = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while not told.get("goodbye"):
        if not poll.poll(_LOOK_EVERY_MS):
            if os.getppid() != parent:
                break
            continue
        new = os.read(descriptor, 1 << 16)
        if not new:
            break
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            told.update(json.loads(line))
    return told


def _write_down(folder: str, error: Exception) -> None:
    import traceback

    text = "".join(traceback.format_exception(error))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with contextlib.suppress(OSError):
        os.write(os.open(f"{folder}/{FAILURE}", flags, 0o600), text.encode())


def _end_group(pid: int | None) -> None:
    if pid:
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
