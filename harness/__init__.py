"""Watch, force and explain races of torch.compile called from several threads."""

__version__ = "0.1.0"

import sys as _sys

from harness import interrupts as _interrupts


def warmup_done() -> None:
    """Say that the warm-up is over: from here on nothing should be compiled.

    A mark for ``harness.certify``, in the recording of a program under the watch; elsewhere this
    does nothing.
    """
    watch = _sys.modules.get("_compile_race_child.boot")
    if watch is not None:
        watch.warmup_done()


if _interrupts.is_command():
    _interrupts.be_brief()
