"""Calls of compiled code that run eager: what other probes cannot tell of them.

What came of a call is known when its thread calls again, which the wrapper probe sees, or ends. And
a thread that enters a dispatch mode is likely to make calls that dynamo leaves to Python, so its
next ones are looked at.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from .. import following
from .. import torch_symbols as symbols
from ..bounds import worth_recording
from ..recorder import Recorder
from ..settings import Settings


class EagerProbe:
    """Wraps the push of a dispatch mode and the end of a thread."""

    name = "eager"
    modules: tuple[str, ...] = (symbols.EVAL_FRAME_MODULE, symbols.PUSH_MODE.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks a symbol; nothing is wrapped then."""
        push = symbols.PUSH_MODE.get()
        for symbol in (symbols.STANCE, symbols.ANY_DISPATCH_MODE, symbols.DISPATCH_MODES):
            symbol.get()
        symbols.PUSH_MODE.replace(_wrap_push(push, recorder))
        follower = following.of(recorder)
        _watch_ends(recorder, follower)
        recorder.at_end.append(follower.settle)


def _wrap_push(original: Callable[[Any], None], recorder: Recorder) -> Callable[[Any], None]:
    @functools.wraps(original)
    def _push_mode(mode: Any) -> None:
        original(mode)
        try:
            local = recorder.local
            # Torch's own modes come and go by the thousand while it compiles.
            if not local.compiles and not local.traces and not mode.is_infra_mode():
                kind = ("dispatch_mode", type(mode).__name__)
                if worth_recording(local.count(kind)):
                    recorder.look_at_all_threads()
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1

    return symbols.stands_for(original, _push_mode)


def _watch_ends(recorder: Recorder, follower: following.Follower) -> None:
    # The last thing that a thread does in Python, as for the threads probe.
    delete: Callable[[threading.Thread], None] = threading.Thread._delete  # type: ignore[attr-defined]  # noqa: SLF001

    @functools.wraps(delete)
    def settled_delete(self: threading.Thread) -> None:
        try:
            follower.settle()
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1
        delete(self)

    threading.Thread._delete = settled_delete  # type: ignore[attr-defined]  # noqa: SLF001


PROBE = EagerProbe()
