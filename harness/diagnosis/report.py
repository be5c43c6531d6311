"""The report of one run: what every renderer, the gate and ``report.json`` are made from.

One object, ``Report``; its top-level fields are the keys of ``report.json``. Evidence is given as
sequence numbers of events in the recording of the process ``pid``. All text comes from torch or the
program unescaped: it can hold control bytes, and each renderer escapes for its own medium.
"""

from typing import Literal

import msgspec

from harness.diagnosis.memory_report import Memory
from harness.events.ended import Ended
from harness.events.values import ErrorLink, Frame
from harness.statements import (
    Certainty,
    Note,
    Remedy,
    SharedState,
    Stack,
    Statement,
    ThreadRef,
    Value,
)

REPORT_SCHEMA = 1

Verdict = Literal["clean", "found", "incomplete", "failed", "nothing ran"]


class CodeRef(Value, frozen=True):
    """A compiled code object; ``id`` is the recording's number for it in its process."""

    id: int
    name: str
    file: str
    line: int


class Finding(Value, frozen=True):
    """A cause with its evidence. ``follows_from``: codes of the findings that made it possible.

    ``statements[0]`` says what happened in one sentence. ``evidence`` joins the statements'.
    """

    code: str
    title: str
    root: bool
    pid: int
    statements: tuple[Statement, ...]
    remedy: Remedy
    follows_from: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()
    threads: tuple[ThreadRef, ...] = ()
    stacks: tuple[Stack, ...] = ()
    shared_state: SharedState | None = None


class Counts(Value, frozen=True):
    """Counts over all processes; torch's own internal compiles are left out everywhere.

    ``compiles``: calls of dynamo's ``_compile``, also those that failed. ``compiles_after_warmup``:
    those that began after another thread than the code object's first compiler had begun to call
    it; the compiles of a cold start in several threads are among them. ``fallbacks``: calls of
    dense attention outside a compiled frame, a lower bound within a factor of two.
    ``thread_errors``: exceptions that ended a thread, a future's call or the main program; torch's
    own, in threads that it started for itself, are left out. Autograd's threads are left out of
    both counts of threads: they work on behalf of those that are counted.
    """

    compiles: int = 0
    compiles_after_warmup: int = 0
    threads_with_compiled_calls: int = 0
    threads_with_backward: int = 0
    fallbacks: int = 0
    thread_errors: int = 0


class AfterWarmup(Value, frozen=True):
    """What happened after the program had said that its warm-up was over.

    Calls of dense attention outside a compiled frame (``fallbacks``) and calls of compiled code
    that ran ``eager`` are lower bounds.
    """

    compiles: int = 0
    fallbacks: int = 0
    eager: int = 0


class Variant(Value, frozen=True):
    """What one compile was made for: its context and its tensor inputs, as short texts."""

    compile_id: str | None
    thread: ThreadRef
    context: str
    inputs: str
    ok: bool | None
    evidence: int


class ThreadCoverage(Value, frozen=True):
    """How one thread's calls of one code object met the warm-up's entries.

    ``state``: ``covered``: no miss and no compile of its own; ``uncovered``: it missed or
    compiled; ``warm-up``: the thread made the warm-up. ``context`` is that of its first miss or
    compile, else of its first call of compiled code; ``differs`` names what differs from the
    contexts warmed. ``reasons`` are guard texts as torch words them. ``autograd``: a thread of
    autograd's, which called it for one of ``behalf`` (all that called backward); it is not judged.
    """

    thread: ThreadRef
    state: Literal["warm-up", "covered", "uncovered", "autograd"]
    certainty: Certainty
    context: str
    differs: tuple[str, ...] = ()
    misses: int = 0
    compiles: int = 0
    reasons: tuple[str, ...] = ()
    behalf: tuple[ThreadRef, ...] = ()
    evidence: tuple[int, ...] = ()


class CodeCoverage(Value, frozen=True):
    """Coverage of one compiled code object: what its warm-up compiled and how threads fared.

    ``left_out``: so many threads more than are listed called it.
    """

    code: CodeRef
    pid: int
    warmup: tuple[Variant, ...]
    threads: tuple[ThreadCoverage, ...]
    left_out: int = 0


class CacheVariant(Value, frozen=True):
    """One cache entry. ``same_as``: number of an earlier entry with identical guards.

    ``accepts``: the tensors that its guards ask for, ``?`` for a size that may vary. ``before``: it
    was there when the watch began.
    """

    number: int
    compile_id: str | None
    context: str
    inputs: str = ""
    made_by: ThreadRef | None = None
    guards: tuple[str, ...] = ()
    same_as: int | None = None
    accepts: str = ""
    before: bool = False


class Rejection(Value, frozen=True):
    """A guard that rejected a call of ``thread``. ``entry``: compile id of the rejecting entry."""

    thread: ThreadRef
    guard: str
    entry: str | None = None
    certainty: Certainty = "observed"
    evidence: tuple[int, ...] = ()


class EagerUse(Value, frozen=True):
    """Calls of one thread that ran eager, for one reason. ``by``: another thread's doing it was.

    ``count`` is a lower bound: calls are followed only while their thread is looked at.
    """

    thread: ThreadRef
    reason: str
    by: ThreadRef | None = None
    count: int = 1
    evidence: tuple[int, ...] = ()


class CodeCache(Value, frozen=True):
    """The entries of one code object; ``complete``: read at the end of the program.

    ``eager``: calls that used none of them. ``left_out``: so many entries and rejections more than
    are listed, together.
    """

    code: CodeRef
    pid: int
    entries: tuple[CacheVariant, ...]
    rejections: tuple[Rejection, ...] = ()
    complete: bool = False
    left_out: int = 0
    eager: tuple[EagerUse, ...] = ()


class ErrorReport(Value, frozen=True):
    """An exception that ended a thread, the program or a future's call.

    ``chain[0]`` is the exception, then its causes, contexts and group members; frames run from the
    outermost call to the innermost. ``explained_by``: codes of the findings that account for it.
    ``read``: whether anybody asked the future for it; None unless ``via`` is ``future``.
    ``torchs_own``: no frame of the program's is in it, and torch had started the thread for itself,
    so it is none of the program's errors and is not counted.
    """

    thread: ThreadRef
    via: Literal["main", "thread", "future"]
    type: str
    message: str
    chain: tuple[ErrorLink, ...]
    t_s: float
    evidence: int
    explained_by: tuple[str, ...] = ()
    read: bool | None = None
    torchs_own: bool = False


class LadderStep(Value, frozen=True):
    """Something a thread did. ``t_s``: seconds since the recording began.

    ``duration_s`` is None for an instant; ``open``: it began and no end was recorded.
    """

    t_s: float
    what: str
    detail: str = ""
    duration_s: float | None = None
    open: bool = False
    evidence: int = 0


class ThreadReport(Value, frozen=True):
    """One thread: who made it, its context and config at its first call, and what it did.

    ``role``: ``main``, ``workload`` (it called compiled code), ``autograd`` (runs backward for
    those in ``behalf``, on ``device``) or ``other``. ``config`` holds non-default
    torch._dynamo.config values; up to torch 2.11, where the config is the process's, only those
    that all threads saw. ``ladder`` is in order of time; ``left_out`` counts steps left out of its
    middle.
    """

    thread: ThreadRef
    role: Literal["main", "workload", "autograd", "other"]
    device: str = ""
    created_by: ThreadRef | None = None
    creation_stack: tuple[Frame, ...] = ()
    first_context: str = ""
    config: dict[str, bool | int | float | str | None] = {}  # noqa: RUF012 - msgspec copies it
    compiled_calls: bool = False
    backwards: int = 0
    compiles: int = 0
    misses: int = 0
    steps: int = 0
    behalf: tuple[ThreadRef, ...] = ()
    ladder: tuple[LadderStep, ...] = ()
    left_out: int = 0
    ended: bool = False


class Environment(Value, frozen=True):
    """Where the run took place, from the recording's header. Empty strings: not known.

    ``made_from``: a watched program, or texts that one left behind. ``roles``: what a process was,
    such as ``rank 1``, by its id.
    ``memory_cap``: the bound in bytes that was asked for. ``home`` is the user's home folder; ``~``
    once the report has been made safe to share.
    """

    torch: str = ""
    triton: str = ""
    python: str = ""
    cuda: str = ""
    gpus: tuple[str, ...] = ()
    platform: str = ""
    cpus: int = 0
    harness: str = ""
    argv: tuple[str, ...] = ()
    cache_state: str = ""
    cache_dir: str = ""
    started_unix: float = 0.0
    processes: tuple[int, ...] = ()
    roles: dict[int, str] = {}  # noqa: RUF012 - msgspec copies it
    job_id: str = ""
    memory_cap: int | None = None
    env: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    home: str = ""
    made_from: Literal["watch", "text"] = "watch"


class SourceLine(Value, frozen=True):
    """A line of the program's source, without its indentation, as it was when the run began."""

    file: str
    line: int
    text: str


class NotWatched(Value, frozen=True):
    """What was not watched, not reached or not run.

    ``name``: a probe's name, or what is missing (``the program's end``, ``threads``).
    ``state``: a probe's state, else ``not reached``. ``codes``: causes that cannot be decided
    without it. ``decisive``: it makes the verdict incomplete where nothing was found.
    """

    name: str
    state: str
    reason: str
    codes: tuple[str, ...] = ()
    decisive: bool = True


class Report(Value, frozen=True):
    """One run's diagnosis.

    ``after_warmup``: None where the program did not say when its warm-up was over.
    ``replay`` is the command that repeats the run; may be empty. ``expected_threads``: so many
    threads had to call compiled code and backward for the verdict to count. ``source`` has the
    lines of the frames shown, as far as they could be read.
    """

    verdict: Verdict
    exit_code: int
    headline: str
    schema: int = REPORT_SCHEMA
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    counts: Counts = Counts()
    after_warmup: AfterWarmup | None = None
    coverage: tuple[CodeCoverage, ...] = ()
    caches: tuple[CodeCache, ...] = ()
    errors: tuple[ErrorReport, ...] = ()
    threads: tuple[ThreadReport, ...] = ()
    memory: tuple[Memory, ...] = ()
    environment: Environment = Environment()
    not_watched: tuple[NotWatched, ...] = ()
    ended: Ended | None = None
    replay: str = ""
    expected_threads: int | None = None
    source: tuple[SourceLine, ...] = ()


def dumps(report: Report) -> bytes:
    """``report.json``: indented JSON, ASCII-safe control bytes, keys in the order of the fields."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def loads(text: bytes) -> Report:
    """Read ``report.json``. Raises msgspec.ValidationError if it is none."""
    return msgspec.json.decode(text, type=Report)
