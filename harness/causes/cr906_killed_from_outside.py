"""CR906: somebody or something outside ended the program."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.endings import (
    OUTSIDE,
    compiling,
    compiling_stacks,
    killed_from_outside,
    last_active,
    last_words,
    outside_signal,
    stacks_kept,
    waiting,
)
from harness.events.ended import Ended
from harness.statements import Remedy, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR906",
    title="killed-from-outside",
    what=(
        "SIGTERM, SIGHUP, SIGINT or SIGKILL ended the program, and neither the program nor the "
        "harness had sent it; or the harness was told to end, or was killed."
    ),
    why=(
        "Schedulers send SIGTERM at a time or memory limit and SIGKILL after it, a terminal that "
        "vanishes sends SIGHUP, and the kernel's out-of-memory killer sends SIGKILL, which only "
        "its counter tells from anybody else's."
    ),
    evidence=(
        "The signal that ended the process, as the parent saw it; the signal that the parent got; "
        "and the kernel's counter of out-of-memory kills before and after the run."
    ),
    remedy=Remedy(
        text=(
            "Look for who sent it: the scheduler's log and limits, the kernel's log (dmesg), the "
            "terminal. A run that must outlive its terminal is started with `nohup` or `setsid`."
        ),
    ),
    versions="all",
    may_follow=("CR4",),
)

_OUT_OF_MEMORY = Remedy(
    text=(
        "Give the job more memory or let it use less: fewer processes and threads that compile at "
        "once, shorter sequences, no dense attention on the CPU. The kernel's log (dmesg) has the "
        "sizes."
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """An end that came from outside."""
    ended = timeline.ended
    if ended is None or not killed_from_outside(timeline):
        return Outcome()
    threads = last_active(timeline)
    out_of_memory = _by_the_oom_killer(ended)
    found = Found(
        code="CR906",
        statements=(
            *_how(timeline, ended),
            *_out_of_memory(ended),
            *(waiting(timeline, ended) if ended.waits else ()),
            *last_words(timeline, threads),
            *stacks_kept(ended),
        ),
        headline=_headline(timeline, ended),
        # Memory that a fallback took is why the kernel kills; nothing else here makes anybody kill.
        because=frozenset(call.seq for call in timeline.dense) if out_of_memory else frozenset(),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=compiling_stacks(timeline),
        remedy=_OUT_OF_MEMORY if out_of_memory else None,
    )
    return Outcome(found=[found])


def _how(timeline: Timeline, ended: Ended) -> list[Statement]:
    if ended.parent_killed:
        by = " and then ".join(ended.sent)
        then = f"Its guardian ended the program with {by}." if by else "The program was gone too."
        return [
            Statement("The harness itself was killed while the program ran.", "observed"),
            Statement(f"{then} How it would have ended is not known.", "observed"),
        ]
    if ended.told_to_end:
        return [
            Statement(f"The harness was told to end by {ended.told_to_end}.", "observed"),
            Statement(f"It passed that on, and the program {_end(ended)}.", "observed"),
        ]
    number = outside_signal(timeline)
    if number is not None:
        text = f"{OUTSIDE[number]} ended it, to judge by its exit code {ended.exit_code}."
        return [Statement(text, "inferred")]
    text = f"{ended.signal_name or 'A signal'} ended the program; the harness had not sent it."
    return [Statement(text, "observed")]


def _end(ended: Ended) -> str:
    if ended.signal is not None:
        return f"was ended by {ended.signal_name or f'signal {ended.signal}'}"
    return f"ended with exit code {ended.exit_code}"


def _killed(ended: Ended) -> bool:
    """Whether SIGKILL came from outside, which is what the out-of-memory killer sends."""
    if ended.parent_killed:
        return True
    return (ended.signal == 9 or ended.exit_code == 137) and "SIGKILL" not in ended.sent


def _by_the_oom_killer(ended: Ended) -> bool:
    return _killed(ended) and not ended.told_to_end and bool(ended.oom_kills)


def _out_of_memory(ended: Ended) -> list[Statement]:
    """Whether the kernel's out-of-memory killer did it, as far as its counter can tell."""
    if not _killed(ended) or ended.told_to_end:
        return []
    if ended.oom_kills is None:
        text = (
            "Whether it was the kernel's out-of-memory killer is not known: no counter of its "
            "kills could be read."
        )
        return [Statement(text, "unknown")]
    if not ended.oom_kills:
        text = (
            f"It was not the kernel's out-of-memory killer, as far as {ended.oom_counter} tells, "
            "which counts no kill and would not count one in another cgroup."
        )
        return [Statement(text, "inferred")]
    whose = "the machine" if ended.oom_counter.endswith("vmstat") else "its memory cgroup"
    counted = (
        f"The kernel killed {words.count(ended.oom_kills, 'process', 'processes')} of {whose} for "
        f"want of memory while it ran ({ended.oom_counter})."
    )
    victim = "the harness" if ended.parent_killed else "the program"
    return [
        Statement(counted, "observed"),
        Statement(f"So the out-of-memory killer ended {victim}.", "inferred"),
    ]


def _headline(timeline: Timeline, ended: Ended) -> str:
    doing = f" {compiling(timeline)}".rstrip()
    if ended.parent_killed:
        by = ", likely by the kernel's out-of-memory killer" if _by_the_oom_killer(ended) else ""
        then = "its guardian ended the program" if ended.sent else "the program was gone too"
        return f"The harness itself was killed{by}, and {then}{doing}."
    if ended.told_to_end:
        return (
            f"The harness was told to end by {ended.told_to_end}, and the program {_end(ended)}"
            f"{doing}."
        )
    if _by_the_oom_killer(ended):
        return (
            "SIGKILL ended the program, likely from the kernel's out-of-memory killer, which "
            f"killed {words.count(ended.oom_kills or 0, 'process', 'processes')} meanwhile{doing}."
        )
    number = outside_signal(timeline)
    name = ended.signal_name if number is None else OUTSIDE[number]
    return f"The program was killed from outside by {name or 'a signal'}{doing}."
