"""Watch, force and explain races of torch.compile called from several threads."""

__version__ = "0.1.0"

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from harness import interrupts as _interrupts

if _TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import ParamSpec, TypeVar

    from harness.guarding import Guarded
    from harness.inprocess import Watching

    P = ParamSpec("P")
    R = TypeVar("R")


def watching(
    out: "Path | str | None" = None, *, source: bool = True, compile_detail: bool = True
) -> "Watching":
    """Watch a block of a program in its own process: ``with harness.watching() as run:``.

    ``run.verdict``, ``run.diagnosis`` and ``run.report()`` are there once the block has ended; all
    that was replaced in torch and Python is then back in its place. Watches may be nested and
    overlap. What was compiled before shows as cache entries only.

    Args:
        out: folder below which a run folder with the recording and the report is made; None:
            nothing is kept but the diagnosis.
        source: show the program's source lines in the report.
        compile_detail: read torch's trace log, which names the guards that failed.

    Raises:
        UsageError: on entering, where ``out`` cannot be written to.
    """
    from pathlib import Path

    from harness.inprocess import Watching

    place = None if out is None else Path(out)
    return Watching(place, source=source, compile_detail=compile_detail)


def guarded(compiled: "Callable[P, R]") -> "Guarded[P, R]":
    """Guard a compiled function: calls run in its warm-up's context, and never compile.

    ``attention = harness.guarded(torch.compile(flex_attention))``, then, in one thread,
    ``with attention: attention(q, k, v).sum().backward()``. From there on a call in any thread runs
    under the grad mode, inference mode, autocast, num_threads and dynamo config of that block, and
    raises torch's RecompileError where it would compile anew. This adds some 150 microseconds to a
    call (torch 2.13.0+cpu, two cores). Up to torch 2.11 dynamo's config is one for the process:
    there other threads' compiles of other functions raise as well, during such a call.

    It does not help where nothing was compiled wrong: see ``python -m harness.explain``.

    Raises:
        TypeError: it is given nothing that can be called.
    """
    from harness.guarding import Guarded

    return Guarded(compiled)


def warmup_done() -> None:
    """Say that the warm-up is over: from here on nothing should be compiled.

    A mark for ``harness.certify``, in the recording of a program under the watch; elsewhere this
    does nothing.
    """
    for name in ("_compile_race_child.boot", "harness.child.in_process.inside"):
        watch = _sys.modules.get(name)
        if watch is not None:
            watch.warmup_done()


if _interrupts.is_command():
    _interrupts.be_brief()
