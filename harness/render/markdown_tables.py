"""Tables of ``report.md``: coverage, contexts, what each thread did, compiled caches, memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from harness.diagnosis.memory_report import Memory
from harness.diagnosis.report import CodeCache, CodeCoverage, ThreadReport
from harness.phrases import count
from harness.render import facts
from harness.render import memory as memory_facts
from harness.render.lines import EventLine
from harness.render.markup import cell, cell_code, code, fence, inline, link, table
from harness.render.view import View

Item = TypeVar("Item")


def evidence(view: View, pid: int, seqs: Iterable[int]) -> str:
    """Links to event lines in brackets; empty if there are none."""
    links = _links(view, pid, seqs)
    return f" ({links})" if links else ""


def _links(view: View, pid: int, seqs: Iterable[int]) -> str:
    """Links to event lines, for a cell of a table."""
    return ", ".join(_line(label, event) for label, event in view.lines.labelled(pid, seqs))


def _line(label: str, event: EventLine) -> str:
    return link(label, f"{event.target}#L{event.line}") if event.file else code(label)


def section(
    title: str,
    items: Sequence[Item],
    each: Callable[[Item], Iterable[str]],
    intro: Iterable[str] = (),
) -> Iterator[str]:
    """A heading and what there is under it, a blank line before each; nothing without items."""
    if not items:
        return
    yield f"## {title}"
    for sentence in intro:
        yield ""
        yield sentence
    for item in items:
        yield ""
        yield from each(item)


def bullets(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences as a list."""
    for sentence in sentences:
        yield f"- {inline(sentence)}"


def coverage(view: View) -> Iterator[str]:
    """What each compiled function's warm-up made, and how the threads fared with it."""
    return section("What was covered", view.covered, partial(_coverage_of, view))


def _coverage_of(view: View, covered: CodeCoverage) -> Iterator[str]:
    where = f"{covered.code.file}:{covered.code.line}"
    yield f"### {code(covered.code.name)} at {code(where)}"
    yield ""
    if covered.warmup:
        yield from table(
            ["Warm-up compile", "Thread", "Context", "Inputs", "Event"],
            (
                [
                    cell_code(made.compile_id or "unknown") + ("" if made.ok else " (failed)"),
                    cell(view.name(made.thread)),
                    cell(made.context),
                    cell(made.inputs),
                    _links(view, covered.pid, (made.evidence,)),
                ]
                for made in covered.warmup
            ),
        )
        yield ""
    yield from table(
        [
            *("Thread", "State", "Known", "Misses", "Compiles", "Differs from the warm-up"),
            *("Guards that rejected", "Events"),
        ],
        (
            [
                cell(view.name(of.thread)),
                of.state,
                of.certainty,
                f"{of.misses:,}",
                f"{of.compiles:,}",
                cell("; ".join(of.differs)),
                "<br>".join(map(cell_code, of.reasons)),
                _links(view, covered.pid, of.evidence),
            ]
            for of in covered.threads
        ),
    )
    if covered.left_out:
        yield ""
        yield facts.more_threads(covered)


def contexts(view: View) -> Iterator[str]:
    """Context and config as each thread saw them, and in words what differs."""
    if not view.callers:
        return
    yield "## Context and config as each thread saw them"
    yield ""
    if view.differences:
        yield from bullets(view.differences)
    else:
        yield f"No difference between {count(len(view.callers), 'thread')}."
    yield ""
    yield from table(
        ["Thread", "Role", "Context at its first compiled call", "Config that is not the default"],
        (
            [
                cell(view.name(of.thread)),
                cell(facts.role(of)),
                ", ".join(
                    f"**{cell(part)}**" if differs else cell(part)
                    for part, differs in view.context_parts(of)
                )
                or "not recorded",
                cell(", ".join(f"`{key}={value!r}`" for key, value in of.config.items()) or "none"),
            ]
            for of in view.callers
        ),
    )


def ladders(view: View) -> Iterator[str]:
    """For each thread what it did, in order."""
    return section("What each thread did, in order", view.report.threads, partial(_ladder, view))


def _ladder(view: View, of: ThreadReport) -> Iterator[str]:
    yield f"### {inline(view.name(of.thread))} ({inline(facts.role(of))}, tid {of.thread.tid})"
    yield ""
    yield f"{inline(view.created(of.thread) or 'its creation was not recorded')}; {facts.did(of)}."
    if of.ladder:
        yield ""
        yield from table(
            ["At, s", "For, s", "What", "Detail", "Event"],
            (
                [
                    f"{step.t_s:.3f}",
                    facts.duration(step),
                    cell(step.what),
                    cell(step.detail),
                    _links(view, of.thread.pid, (step.evidence,)),
                ]
                for step in of.ladder
            ),
        )
    if of.left_out:
        yield ""
        yield f"{count(of.left_out, 'step')} left out of the middle; see the recording."


def caches(view: View) -> Iterator[str]:
    """The entries of each compiled function, and which guards rejected calls."""
    return section("Compiled caches", view.report.caches, partial(_cache, view))


def _cache(view: View, cache: CodeCache) -> Iterator[str]:
    where = f"{cache.code.file}:{cache.code.line}"
    number = count(len(cache.entries), "entry", "entries")
    yield f"### {code(cache.code.name)} at {code(where)}: {number} {facts.read_when(cache)}"
    if cache.entries:
        yield ""
        yield from table(
            ["Entry", "Compile", "Made by", "Context", "Inputs", "Same guards as"],
            (
                [
                    str(entry.number),
                    cell_code(entry.compile_id or "unknown"),
                    cell(view.made_by(entry)),
                    cell(entry.context),
                    cell(facts.entry_inputs(entry)),
                    "" if entry.same_as is None else f"entry {entry.same_as}",
                ]
                for entry in cache.entries
            ),
        )
    if cache.rejections:
        yield ""
        yield from table(
            ["Rejected call of", "Guard", "Of entry", "Known"],
            (
                [
                    cell(view.name(no.thread)),
                    cell_code(no.guard) + evidence(view, cache.pid, no.evidence),
                    cell_code(no.entry) if no.entry else "unknown",
                    no.certainty,
                ]
                for no in cache.rejections
            ),
        )
    if cache.eager:
        yield ""
        for use in cache.eager:
            links = evidence(view, cache.pid, use.evidence)
            yield f"- {inline(view.eager(use))}{links}"
    if cache.left_out:
        yield ""
        yield facts.not_listed(cache)
    for entry in cache.entries:
        if entry.guards:
            yield ""
            yield f"<details><summary>Guards of entry {entry.number}</summary>"
            yield ""
            yield from fence("\n".join(entry.guards), "text")
            yield ""
            yield "</details>"


def memory(view: View) -> Iterator[str]:
    """What was in use at most, and which requests failed."""
    return section(memory_facts.TITLE, view.report.memory, partial(_memory_of, view))


def _memory_of(view: View, of: Memory) -> Iterator[str]:
    yield from table(memory_facts.HEADS, ([*map(cell, row)] for row in memory_facts.rows(of)))
    said = list(memory_facts.sentences(view, of))
    if said:
        yield ""
    for sentence, seqs in said:
        yield f"- {inline(sentence)}{evidence(view, of.pid, seqs)}"
