"""Single facts of a report as sentences, the same in every renderer."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from harness.diagnosis.report import (
    CacheVariant,
    CodeCache,
    CodeCoverage,
    EagerUse,
    Environment,
    ErrorReport,
    LadderStep,
    NotWatched,
    Report,
    ThreadReport,
)
from harness.diagnosis.warmed import warm_ups
from harness.events.ended import Ended
from harness.events.memory import size
from harness.phrases import count

EXPLAIN = "python -m harness.explain"

VERDICTS = {
    "clean": "no cause was found in what was watched",
    "found": "at least one cause was found",
    "incomplete": "the run cannot answer: something that it needs was not watched or not reached",
    "failed": "the harness itself failed",
    "nothing ran": "no thread called compiled code",
}
"""What each verdict means, for a reader who sees one for the first time."""

CERTAINTY = {
    "observed": "events say it",
    "inferred": "it follows from events by a rule that the sentence states",
    "unknown": "it could not be decided",
}

RELATIONS = {
    "self": "The error",
    "cause": "Caused by",
    "context": "While handling",
    "member": "Member of the group",
}

VIA = {"main": "ended the program", "thread": "ended the thread", "future": "kept in a future"}


@dataclass(frozen=True)
class Count:
    """One number of the report and what was counted, to be read as a sentence."""

    number: int
    what: str


def says_verdict(report: Report) -> bool:
    """Whether the headline begins with the verdict, so that it need not be put before it."""
    return report.headline.lower().startswith(report.verdict)


def title(report: Report) -> str:
    """The headline, with the verdict before it."""
    if says_verdict(report):
        return report.headline
    return f"{report.verdict.capitalize()}: {report.headline}"


def counts(report: Report) -> list[Count]:
    """Every count with what it counts, and how many of how many where the whole is known.

    Texts tell of compiles and errors, and count no threads.
    """
    found, threads_seen = report.counts, len(report.threads)
    of = f" of {threads_seen:,} seen" if threads_seen >= found.threads_with_compiled_calls else ""

    def counted(number: int, noun: str, rest: str) -> Count:
        return Count(number, f"{count(number, noun).split(' ', 1)[1]}{rest}")

    # After the first eight only powers of two are recorded.
    least = " at least" if found.fallbacks > 8 else ""
    if report.environment.made_from == "text":
        return [
            counted(found.compiles, "compile", " that the texts tell of"),
            counted(found.compiles_after_warmup, "compile", " of these after the first"),
            counted(found.thread_errors, "error", ""),
        ]
    return [
        counted(found.compiles_after_warmup, "compile", f" {_late(report)}"),
        counted(found.compiles, "compile", " in all"),
        counted(found.threads_with_compiled_calls, "thread", f"{of} called compiled code"),
        counted(found.threads_with_backward, "thread", f"{of} called backward"),
        counted(found.fallbacks, "call", f"{least} of dense attention outside a compiled frame"),
        counted(found.thread_errors, "error", " ended a thread, a future's call or the program"),
    ]


def _late(report: Report) -> str:
    """What the compiles that are counted as after a warm-up were, where there may be none."""
    seen = warm_ups(report)
    if False not in seen:
        return "after warm-up"
    return "after or without a warm-up" if True in seen else "without a warm-up"


def ending(ended: Ended | None) -> list[str]:
    """How the process ended, in sentences."""
    if ended is None:
        return ["How the process ended is not known: there is no record of it that can be read."]
    said = []
    if ended.deadline_hit:
        state = {
            True: " It was idle then: next to no processor time and no new events.",
            False: " It was still at work then.",
            None: "",
        }[ended.idle_at_deadline]
        said.append(f"The time limit of {ended.timeout_s:g} s was reached.{state}")
    if ended.interrupted:
        said.append("The run was interrupted from the keyboard.")
    if ended.stopped_on:
        said.append(f"The harness ended the run early, as was asked for: {ended.stopped_on}.")
    said += _from_outside(ended)
    said.append(_status(ended))
    if ended.disk_full:
        said.append("Nothing more could be written to the run folder: its disk was full.")
    if ended.leftovers:
        said.append(f"{count(ended.leftovers, 'process', 'processes')} left behind were ended.")
    if ended.child_failure:
        said.append(f"The watch failed in the child: {ended.child_failure}")
    return said


def _from_outside(ended: Ended) -> list[str]:
    if ended.parent_killed:
        by = f", and its guardian sent {' and then '.join(ended.sent)}" if ended.sent else ""
        return [f"The harness itself was killed while the program ran{by}."]
    if ended.told_to_end:
        return [f"The harness was told to end by {ended.told_to_end} and passed it on."]
    if not ended.killed_from_outside:
        return []
    return ["It was killed from outside: neither by itself nor by the harness."]


def _status(ended: Ended) -> str:
    after = f"after {ended.wall_s:.1f} s"
    if ended.block:
        how = "by an exception " if ended.exit_code else ""
        return f"The watched block was left {how}{after}; its process went on."
    if ended.signal is not None:
        name = f" ({ended.signal_name})" if ended.signal_name else ""
        if ended.deadline_hit or ended.stopped_on:
            return f"The harness then ended it with signal {ended.signal}{name}, {after}."
        whose = ", which the harness sent," if ended.signal_name in ended.sent else ""
        return f"The process was ended by signal {ended.signal}{name}{whose} {after}."
    if ended.exit_code is not None:
        return f"The process ended by itself with exit code {ended.exit_code} {after}."
    return f"The process was gone {after}; its exit status is not known."


def outputs(ended: Ended | None) -> list[tuple[str, str]]:
    """Texts that the process or its supervisor left, with titles; only those that exist."""
    if ended is None:
        return []
    texts = [
        ("Stacks before the harness ended it", ended.stacks),
        ("Stacks at the fatal signal", ended.fatal_stacks),
        ("End of the program's output", ended.stderr_tail),
    ]
    return [(title, body) for title, body in texts if body.strip()]


def role(thread: ThreadReport) -> str:
    """What a thread is there for: ``workload``, ``autograd:cuda:0``."""
    return f"{thread.role}:{thread.device}" if thread.device else thread.role


def did(thread: ThreadReport) -> str:
    """How much of what a thread did."""
    parts = [
        count(thread.compiles, "compile"),
        count(thread.misses, "guard miss", "guard misses"),
        count(thread.backwards, "backward"),
        count(thread.steps, "step"),
    ]
    called = "called compiled code" if thread.compiled_calls else "no compiled call"
    if thread.role != "main":  # whose end is the program's
        parts.append("ended" if thread.ended else "its end was not seen")
    return ", ".join((called, *parts))


def duration(step: LadderStep) -> str:
    """Seconds that a step took; empty for an instant."""
    if step.open:
        return "no end seen"
    return "" if step.duration_s is None else f"{step.duration_s:.3f}"


def warmed(covered: CodeCoverage) -> list[str]:
    """What the warm-up compiled of one function, compiles for the same context together."""
    by_context: dict[str, list[str]] = {}
    for made in covered.warmup:
        by_context.setdefault(made.context or "context not recorded", []).append(made.inputs)
    said = []
    for context, inputs in by_context.items():
        shapes = "; ".join(dict.fromkeys(text for text in inputs if text))
        said.append(f"{count(len(inputs), 'compile')}: {context}" + (f"; {shapes}" * bool(shapes)))
    return said


def versions(of: Environment) -> list[tuple[str, str]]:
    """The versions that a reader asks for first; only those that are known."""
    known = [("torch", of.torch), ("triton", of.triton), ("CUDA", of.cuda), ("python", of.python)]
    gpus = [(count(len(of.gpus), "GPU"), ", ".join(dict.fromkeys(of.gpus)))] if of.gpus else []
    cache = [("compile cache", of.cache_state)]
    return [(name, version) for name, version in known + gpus + cache if version]


def read_when(cache: CodeCache) -> str:
    """When the entries of a cache were read."""
    return "at the end" if cache.complete else "seen while it ran; its end was not reached"


def more_threads(covered: CodeCoverage) -> str:
    """That more threads called a function than the report lists."""
    return f"{count(covered.left_out, 'more thread')} called it; see the recording."


def entry_inputs(entry: CacheVariant) -> str:
    """What an entry was compiled for, and what its guards take where they say more."""
    if not entry.inputs:
        return entry.accepts
    return f"{entry.inputs}; takes {entry.accepts}" if "?" in entry.accepts else entry.inputs


def eager(use: EagerUse, by: str) -> str:
    """Why calls ran eager; ``by``: the other thread whose doing it was, or empty."""
    whose = f", by thread {by}" if by else ""
    return f"{count(use.count, 'call')} or more ran eager: {use.reason}{whose}"


def not_listed(cache: CodeCache) -> str:
    """That a cache has more than the report lists."""
    more = count(cache.left_out, "more entry or rejection", "more entries and rejections")
    return f"{more} not listed; see the recording."


def environment(report: Report) -> list[tuple[str, str]]:
    """Versions and place of the run, by name; only what is known."""
    of = report.environment
    started = ""
    if of.started_unix:
        started = datetime.fromtimestamp(of.started_unix, UTC).isoformat(" ", "seconds")
    rows = [
        ("torch", of.torch),
        ("triton", of.triton),
        ("python", of.python),
        ("CUDA", of.cuda),
        ("GPUs", ", ".join(of.gpus)),
        ("platform", of.platform),
        ("processors", str(of.cpus or "")),
        ("harness", of.harness),
        ("compile cache", " ".join(part for part in (of.cache_state, of.cache_dir) if part)),
        ("memory cap", f"{size(of.memory_cap)} of each device" if of.memory_cap else ""),
        ("started", started),
        ("processes", ", ".join(_process(pid, of.roles) for pid in of.processes)),
        ("program", shlex.join(of.argv)),
        *((f"variable {name}", value) for name, value in sorted(of.env.items())),
    ]
    return [(name, value) for name, value in rows if value]


def _process(pid: int, roles: Mapping[int, str]) -> str:
    return f"{pid} ({roles[pid]})" if pid in roles else str(pid)


def not_watched(item: NotWatched) -> str:
    """Why something was not watched, and which causes that leaves undecided."""
    said = f"{item.state}: {item.reason}" if item.reason else item.state
    if item.codes:
        said += f"; undecided without it: {', '.join(item.codes)}"
    return said


def same_errors(errors: Iterable[ErrorReport]) -> list[list[ErrorReport]]:
    """Errors grouped by what they say and what explains them, in order of first appearance."""
    groups: dict[tuple[object, ...], list[ErrorReport]] = {}
    for error in errors:
        key = (error.type, error.message, error.explained_by, error.via, error.read)
        groups.setdefault(key, []).append(error)
    return list(groups.values())


def explained(error: ErrorReport) -> str:
    """Which findings account for an error, and whether anybody saw it."""
    if error.torchs_own:
        return f"{VIA[error.via]}; torch's own, in a thread that it started for itself: not counted"
    by = ", ".join(error.explained_by) or "no finding"
    said = f"{VIA[error.via]}; explained by {by}"
    if error.via == "future":
        said += {
            True: "; the future was read",
            False: "; nobody read the future, so the error was lost",
            None: "; whether the future was read is not known",
        }[error.read]
    return said


def all_watched(report: Report) -> str:
    """Why the list of what was not watched is empty."""
    if report.verdict == "failed":
        return "there is no recording to say what was watched"
    return "every probe was live to the end"
