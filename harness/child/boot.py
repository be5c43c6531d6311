"""Turns a Python process into a watched one. Called by ``site/sitecustomize.py``."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import versions
from .attach import Attachment
from .privacy import mask, mask_argv, mask_environment
from .recorder import KEPT, Recorder
from .schedule.make import make_scheduler
from .session import Session, catch_fatal_signals
from .settings import VARIABLE, Settings
from .torch_symbols import COMPILE_WORKERS

SCHEMA_VERSION = 1
FAILURE = "child-failure.txt"
_ENVIRONMENT = ("TORCH", "PYTORCH", "TRITON", "CUDA", "NCCL", "OMP", "MKL", "PYTHON")

#: Code that is given to ``python -c`` by multiprocessing and by inductor's probe of the processor.
#: multiprocessing's fork server is not among them: what it forks is the program's.
_HELPER_CODE = (
    "from multiprocessing.resource_tracker import main",
    "cdll.LoadLibrary(",
)

#: Seconds without a move after which a hold counts as not reached (see ``schedule.controller``).
PATIENCE_S = 10.0

_session: Session | None = None


def boot() -> None:
    """Start recording if this process is to be watched; never raises."""
    settings: Settings | None = None
    try:
        settings = Settings.from_environment()
        if settings is not None and not _is_left_out(sys.orig_argv):
            _start(settings)
    except Exception:  # noqa: BLE001 - the program must run whatever becomes of the watch
        if settings is not None:
            _report_failure(settings.folder)


def recorder() -> Recorder | None:
    """The event log of this process, if it is one that was started to be watched."""
    return None if _session is None else _session.recorder


def idle_probes() -> list[str]:
    """The probes that have had nothing to patch by now, where ``recorder`` is one."""
    return [] if _session is None else _session.idle_probes()


def warmup_done() -> None:
    """Record that the program says its warm-up is over; never raises."""
    if _session is not None:
        _session.warmup_done()


def is_helper(argv: Sequence[str]) -> bool:
    """Whether a command line is that of a process that Python or torch starts for itself.

    A compile worker's own children are helpers as well, and cannot be told by theirs.
    """
    program = _program(argv)
    return program.endswith(COMPILE_WORKERS) or any(code in program for code in _HELPER_CODE)


def _is_left_out(argv: Sequence[str]) -> bool:
    if _program(argv).endswith(COMPILE_WORKERS):
        os.environ.pop(VARIABLE, None)  # so that its children are left out, too
    return is_helper(argv)


def _program(argv: Sequence[str]) -> str:
    """The script, the module or the code that a command line of Python runs; empty if none."""
    words = iter(argv[1:])
    for word in words:
        if word in {"-c", "-m"}:
            return next(words, "")
        if word in {"-W", "-X"}:
            next(words, "")
        elif not word.startswith("-"):
            return word
    return ""


def _start(settings: Settings) -> None:
    global _session  # noqa: PLW0603 - keeps the session reachable, and boots once
    if _session is not None:
        return
    recorder = _recorder(settings)
    recorder.emit("header", header(settings))
    # Holds are of one process's threads: the program's, not those of what it starts.
    if settings.schedule is not None and not recorder.quiet:
        recorder.schedule = make_scheduler(recorder, settings.schedule, patience_s=PATIENCE_S)
    attachment = Attachment(recorder, settings)
    _session = Session(recorder, attachment)
    _session.start()
    catch_fatal_signals(settings.folder, settings.deadline, main=not recorder.quiet)
    attachment.attach()


def _recorder(settings: Settings) -> Recorder:
    """The first process of a run gets ``events.jsonl``; each later one a file of its own."""
    steady = settings.max_events_mb << 20
    try:
        path = os.path.join(settings.folder, KEPT)  # noqa: PTH118 - keep the child's imports few
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        name = f"events-{os.getpid()}.jsonl"
        return Recorder(settings.folder, name=name, max_steady_bytes=steady, lazy=True)
    return Recorder(settings.folder, max_steady_bytes=steady)


def header(settings: Settings) -> dict[str, Any]:
    """Return ``program.HeaderData``: what is known without importing torch."""
    torch, cuda = versions.torch_version()
    system = os.uname()
    return {
        "schema": SCHEMA_VERSION,
        "harness": settings.harness,
        "python": versions.python_version(),
        "torch": torch,
        "triton": versions.triton_version(),
        "cuda": cuda,
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "cpus": _cpus(),
        "argv": mask_argv(sys.orig_argv),
        "started_unix": time.time(),
        "compile_detail": settings.compile_detail,
        "disabled_probes": list(settings.disabled_probes),
        "cache_dir": os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""),
        "cache_state": settings.cache_state,
        "memory_cap": settings.memory_cap,
        "in_process": settings.in_process,
        "job_id": os.environ.get("TORCH_COMPILE_JOB_ID", ""),
        "rank": mask(os.environ.get("RANK", "")),
        "env": mask_environment(
            {k: v for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT)}
        ),
        "home": os.path.expanduser("~"),  # noqa: PTH111 - pathlib is an import to do without
    }


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _report_failure(folder: str) -> None:
    import traceback

    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(os.path.join(folder, FAILURE), flags, 0o600)  # noqa: PTH118
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            argv = mask_argv(sys.orig_argv)
            file.write(f"process {os.getpid()}: {argv}\n{mask(traceback.format_exc())}")
    except OSError:
        pass  # nowhere to say it; the parent sees that there is no recording
