"""Forks while another thread holds dynamo's compile lock: the child then has it locked for good."""

import os
from typing import Any

from .. import torch_symbols as symbols
from ..calling_thread import name_of
from ..recorder import Recorder
from ..settings import Settings
from .lock import OWNER


class ForksProbe:
    """Looks at the lock before each fork; the child records it if another thread held the lock."""

    name = "forks"
    modules: tuple[str, ...] = (symbols.COMPILE_LOCK.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Register for forks. Raises Unavailable if this torch has no such lock."""
        symbols.COMPILE_LOCK.get()
        held: dict[str, Any] = {}

        def before() -> None:
            held.clear()
            held.update(_held(recorder))

        def in_child() -> None:
            # The recorder's own hook was registered earlier, so it has begun anew by now.
            if held:
                recorder.emit("fork", dict(held), stack=True)

        recorder.at_fork(before=before, after_in_child=in_child)


def _held(recorder: Recorder) -> dict[str, Any]:
    """``harness.events.graphs.ForkData`` if another thread holds the lock; never raises."""
    try:
        owner = getattr(symbols.COMPILE_LOCK.find(), OWNER, None)
        tid = recorder.local.tid
        if owner is None or owner == tid:
            return {}
        return {
            "parent": os.getpid(),
            "by": tid,
            "owner": owner,
            "owner_name": name_of(owner),
            "compiling": owner in recorder.compiling,
        }
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1
        return {}


PROBE = ForksProbe()
