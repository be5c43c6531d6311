"""The report's first sentence, which stands alone."""

from collections.abc import Mapping, Sequence

from harness.causes import words
from harness.causes.base import Found
from harness.diagnosis.report import Counts, Finding, NotWatched, Verdict
from harness.events.ended import Ended
from harness.timeline.model import Thread
from harness.timeline.timeline import Timeline

MAX_FOLLOWERS = 2


def headline(
    verdict: Verdict,
    *,
    findings: Sequence[Finding],
    said: Mapping[tuple[int, str], str],
    timelines: Sequence[Timeline],
    counts: Counts,
    missing: Sequence[NotWatched],
    ended: Ended | None,
) -> str:
    """The headline for a verdict.

    Args:
        verdict: the verdict.
        findings: the findings, roots first.
        said: each finding's own sentence by its process and code.
        timelines: the processes.
        counts: the report's counts.
        missing: what was not watched or not reached.
        ended: how the program ended, if that is known.
    """
    match verdict:
        case "found":
            return _found(findings, said)
        case "failed":
            return _failed(timelines, missing, ended)
        case "nothing ran":
            return "Nothing ran: no call of compiled code was seen."
        case "incomplete":
            return _incomplete(counts, missing)
        case "clean":
            return f"Clean: {_covered(timelines, counts)}."


def sentences(found: Mapping[int, Sequence[Found]]) -> dict[tuple[int, str], str]:
    """Each finding's own sentence by its process and code."""
    said: dict[tuple[int, str], str] = {}
    for pid, own in found.items():
        for finding in own:
            said.setdefault((pid, finding.code), finding.headline)
    return said


def _failed(
    timelines: Sequence[Timeline], missing: Sequence[NotWatched], ended: Ended | None
) -> str:
    why = ended.child_failure.strip().splitlines() if ended else []
    if why:
        return f"The program was not watched: {why[-1]}"
    if timelines or any(gap.state in {"damaged", "cut"} for gap in missing):
        return f"The recording cannot be read: it has no header.{_and_ended(ended)}"
    empty = any(gap.state == "empty" for gap in missing)
    if ended is None:
        return "The recording is empty." if empty else "There is no recording."
    killed = ended.signal is not None or ended.parent_killed
    reasons = (
        (killed, f".{_and_ended(ended)} Nothing had been recorded by then."),
        (ended.disk_full, f": the disk was full.{_and_ended(ended)}"),
        (empty, f": its recording is empty.{_and_ended(ended)}"),
        (
            True,
            (
                ": its interpreter did not load the watch (PYTHONPATH or sitecustomize), or the "
                f"recording is gone.{_and_ended(ended)}"
            ),
        ),
    )
    return "The program was not watched" + next(reason for holds, reason in reasons if holds)


def _and_ended(ended: Ended | None) -> str:
    """How the program ended, as a sentence after another one."""
    if ended is None:
        return ""
    after = f"after {ended.wall_s:.1f} s"
    if ended.parent_killed:
        return f" The harness itself was killed {after}."
    if ended.signal is None:
        return f" It ended with exit code {ended.exit_code} {after}."
    name = ended.signal_name or f"signal {ended.signal}"
    outside = " from outside" if ended.killed_from_outside else ""
    return f" {name}{outside} ended it {after}."


def _found(findings: Sequence[Finding], said: Mapping[tuple[int, str], str]) -> str:
    roots = [finding for finding in findings if finding.root]
    first = roots[0]
    parts = [said[first.pid, first.code]]
    reached = {first.code}
    followers = []
    for finding in findings:
        if finding.pid == first.pid and reached & set(finding.follows_from):
            reached.add(finding.code)
            followers.append(finding)
    # That an error which has just been explained was swallowed too is not worth the room.
    followers = [finding for finding in followers if finding.code != "CR901"]
    parts += [said[f.pid, f.code] for f in followers[:MAX_FOLLOWERS]]
    others = dict.fromkeys(root.code for root in roots if root is not first)
    others.pop(first.code, None)
    if others:
        parts.append(f"Also found: {words.listing(others)}.")
    return " ".join(parts)


def _incomplete(counts: Counts, gaps: Sequence[NotWatched]) -> str:
    open_ = [gap for gap in gaps if gap.decisive]
    more = f", and {words.count(len(open_) - 1, 'more gap')}" if len(open_) > 1 else ""
    why = f"{open_[0].name}: {open_[0].reason}" if open_ else "it is not known how it ended"
    seen = (
        f"nothing was found in {words.count(counts.threads_with_compiled_calls, 'thread')} "
        "with compiled calls"
    )
    return f"Incomplete ({why}{more}): {seen}, but that is not a pass."


def _covered(timelines: Sequence[Timeline], counts: Counts) -> str:
    histories = [h for t in timelines for h in t.program_codes() if h.compiles and h.sightings]
    codes = [history.code for history in histories]
    warm = sum(not compile_.before for h in histories for compile_ in h.warmup())
    callers = [(t, thread) for t in timelines for thread in t.workload_threads()]
    others = [thread for t, thread in callers if thread.tid != t.main_tid]
    who = words.count(len(callers), "thread")
    if others:
        who = f"{words.count(len(others), 'thread')} beside the main one"
    what = words.codes(codes) or "compiled code"
    also = _with_backward(others or [thread for _, thread in callers])
    return (
        f"{who} called {what}{also}; {words.count(warm, 'warm-up compile')}, "
        f"{counts.compiles_after_warmup} after it, "
        f"{words.count(counts.fallbacks, 'dense fallback')}, "
        f"{words.count(counts.thread_errors, 'thread error')}"
    )


def _with_backward(threads: Sequence[Thread]) -> str:
    number = sum(bool(thread.backwards) for thread in threads)
    if not number:
        return ""
    if number < len(threads):
        return f", {number} of them with backward"
    return ", all with backward" if number > 1 else ", with backward"
