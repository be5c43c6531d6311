"""``report.md``: the whole report for a code host, an issue or a step summary."""

from collections.abc import Iterable, Iterator, Sequence

from harness.diagnosis.report import (
    CodeCache,
    CodeCoverage,
    ErrorReport,
    Finding,
    Remedy,
    Stack,
    ThreadReport,
)
from harness.events.schema import Frame
from harness.render import facts, text
from harness.render.lines import EventLine
from harness.render.markup import cell, cell_code, code, fence, inline, link, table
from harness.render.stacks import fold
from harness.render.view import View


def render(view: View) -> str:
    """The report as Markdown; the last line is the command that repeats the run."""
    sections = [
        _top(view),
        _findings(view),
        _errors(view),
        _counts(view),
        _coverage(view),
        _contexts(view),
        _ladders(view),
        _caches(view),
        _notes(view),
        _not_watched(view),
        _ended(view),
        _environment(view),
        _replay(view),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _evidence(view: View, pid: int, seqs: Iterable[int]) -> str:
    """Links to event lines in brackets; empty if there are none."""
    lines = view.lines.cite(pid, seqs)
    return f" ({', '.join(_line(line) for line in lines)})" if lines else ""


def _line(event: EventLine) -> str:
    if not event.file:
        return code(event.label)
    return link(event.label, f"{event.target}#L{event.line}")


def _bullets(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield f"- {inline(sentence)}"


def _top(view: View) -> Iterator[str]:
    report = view.report
    yield f"# {report.verdict.capitalize()}: {inline(report.headline)}"
    yield ""
    yield (
        f"Verdict **{report.verdict}** (exit code {report.exit_code}): "
        f"{facts.VERDICTS[report.verdict]}."
    )
    if view.chains:
        yield ""
        for way in view.chains:
            steps = " ▸ ".join(f"**{inline(f.code)}** {inline(f.title)}" for f in way)
            yield f"- {steps}"
    for root in view.roots:
        yield ""
        yield f"Explained by {code(f'{facts.EXPLAIN} {root}')}"


# Findings -----------------------------------------------------------------------------------


def _findings(view: View) -> Iterator[str]:
    if not view.report.findings:
        return
    yield "## Findings"
    yield ""
    words = "; ".join(f"*{name}*: {meaning}" for name, meaning in facts.CERTAINTY.items())
    yield f"Each statement says how it is known. {words}."
    for finding in view.report.findings:
        yield ""
        yield from _finding(view, finding)


def _finding(view: View, finding: Finding) -> Iterator[str]:
    yield f"### {inline(finding.code)} {inline(finding.title)} ({inline(view.standing(finding))})"
    yield ""
    for said in finding.statements:
        links = _evidence(view, finding.pid, said.evidence)
        yield f"- *{said.certainty}*: {inline(said.text)}{links}"
    if finding.threads:
        yield f"- Threads: {inline(view.names(finding.threads))}"
    if finding.shared_state is not None:
        state = finding.shared_state
        yield ""
        yield from table(
            ["Shared state", "Writer", "Reader"],
            [[cell_code(state.name), cell(state.writer), cell(state.reader)]],
        )
    for pair in view.side_by_side(finding):
        yield ""
        yield from _stacks(view, pair)
    yield ""
    yield from _remedy(finding.remedy)


def _stacks(view: View, pair: Sequence[Stack]) -> Iterator[str]:
    """Stacks as the columns of one table, innermost call first."""
    columns = [_stack_cells(view, stack) for stack in pair]
    heads = [
        f"{cell(view.name(stack.thread))}: {cell(stack.title)}"
        f"{_evidence(view, stack.thread.pid, stack.evidence)}"
        for stack in pair
    ]
    height = max(map(len, columns))
    yield from table(
        heads,
        ([(column[at] if at < len(column) else "") for column in columns] for at in range(height)),
    )


def _stack_cells(view: View, stack: Stack) -> list[str]:
    folded = fold(stack.frames)
    cells = [f"in {cell(folded.inside)}"] if folded.inside else []
    for row in folded.rows:
        if row.folded:
            cells.append(f"… {cell(row.text)}")
        else:
            cells.append(f"{cell_code(row.place)} {cell_code(row.text)}")
    created = view.created(stack.thread)
    return [*cells, cell(created)] if created else cells


def _remedy(remedy: Remedy) -> Iterator[str]:
    yield f"**Remedy.** {inline(remedy.text)}"
    if remedy.snippet:
        yield ""
        yield from fence(remedy.snippet, "python")
    if remedy.seen_to_work:
        yield ""
        yield f"Seen to work: {inline(remedy.seen_to_work)}"


# Errors and counts --------------------------------------------------------------------------


def _errors(view: View) -> Iterator[str]:
    if not view.report.errors:
        return
    yield "## Errors of every thread"
    for error in view.report.errors:
        yield ""
        yield from _error(view, error)


def _error(view: View, error: ErrorReport) -> Iterator[str]:
    links = _evidence(view, error.thread.pid, (error.evidence,))
    yield f"### {inline(view.name(error.thread))}: {code(error.type)} at {error.t_s:.3f} s"
    yield ""
    yield f"{inline(facts.explained(error))}{links}"
    for link_of in error.chain:
        yield ""
        if link_of.relation != "self":
            yield f"{facts.RELATIONS[link_of.relation]}: {code(link_of.type)}"
            yield ""
        yield from fence(f"{link_of.type}: {link_of.message}", "text")
        if link_of.frames:
            yield ""
            yield from _traceback(link_of.frames)


def _traceback(frames: Sequence[Frame]) -> Iterator[str]:
    """The frames of an exception, innermost first, folded."""
    folded = fold(reversed(frames))
    if folded.inside:
        yield f"- raised in {inline(folded.inside)}"
    for row in folded.rows:
        yield f"- … {inline(row.text)}" if row.folded else f"- {code(row.place)} {code(row.text)}"


def _counts(view: View) -> Iterator[str]:
    yield "## Counts"
    yield ""
    for count in facts.counts(view.report.counts, len(view.report.threads)):
        yield f"- **{count.number:,}** {count.what}"


# Coverage, contexts, caches -----------------------------------------------------------------


def _coverage(view: View) -> Iterator[str]:
    if not view.report.coverage:
        return
    yield "## What was covered"
    for code_of in view.report.coverage:
        yield ""
        yield from _coverage_of(view, code_of)


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
                    _evidence(view, covered.pid, (made.evidence,)).strip(" ()"),
                ]
                for made in covered.warmup
            ),
        )
        yield ""
    yield from table(
        ["Thread", "State", "Known", "Misses", "Compiles", "Differs", "Guards that rejected"],
        (
            [
                cell(view.name(of.thread)),
                of.state,
                of.certainty,
                f"{of.misses:,}",
                f"{of.compiles:,}",
                cell("; ".join(of.differs)),
                "<br>".join(map(cell_code, of.reasons)),
            ]
            for of in covered.threads
        ),
    )


def _contexts(view: View) -> Iterator[str]:
    if not view.callers:
        return
    yield "## Context and config as each thread saw them"
    yield ""
    if view.differences:
        yield from _bullets(view.differences)
    else:
        yield f"No difference between {text.plural(len(view.callers), 'thread')}."
    yield ""
    yield from table(
        ["Thread", "Role", "Context at its first compiled call", "Config that is not the default"],
        (
            [
                cell(view.name(of.thread)),
                of.role,
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


def _ladders(view: View) -> Iterator[str]:
    if not view.report.threads:
        return
    yield "## What each thread did, in order"
    for of in view.report.threads:
        yield ""
        yield from _ladder(view, of)


def _ladder(view: View, of: ThreadReport) -> Iterator[str]:
    yield f"### {inline(view.name(of.thread))} ({of.role}, tid {of.thread.tid})"
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
                    _evidence(view, of.thread.pid, (step.evidence,)).strip(" ()"),
                ]
                for step in of.ladder
            ),
        )
    if of.left_out:
        yield ""
        yield f"{text.plural(of.left_out, 'step')} left out of the middle; see the recording."


def _caches(view: View) -> Iterator[str]:
    if not view.report.caches:
        return
    yield "## Compiled caches"
    for cache in view.report.caches:
        yield ""
        yield from _cache(view, cache)


def _cache(view: View, cache: CodeCache) -> Iterator[str]:
    where = f"{cache.code.file}:{cache.code.line}"
    count = text.plural(len(cache.entries), "entry", "entries")
    yield f"### {code(cache.code.name)} at {code(where)}: {count} {facts.read_when(cache)}"
    if cache.entries:
        yield ""
        yield from table(
            ["Entry", "Compile", "Made by", "Context", "Inputs", "Same guards as"],
            (
                [
                    str(entry.number),
                    cell_code(entry.compile_id or "unknown"),
                    cell(view.name(entry.made_by)) if entry.made_by else "unknown",
                    cell(entry.context),
                    cell(entry.inputs),
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
                    cell_code(no.guard) + _evidence(view, cache.pid, no.evidence),
                    cell_code(no.entry) if no.entry else "unknown",
                    no.certainty,
                ]
                for no in cache.rejections
            ),
        )
    for entry in cache.entries:
        if entry.guards:
            yield ""
            yield f"<details><summary>Guards of entry {entry.number}</summary>"
            yield ""
            yield from fence("\n".join(entry.guards), "text")
            yield ""
            yield "</details>"


# The rest -----------------------------------------------------------------------------------


def _notes(view: View) -> Iterator[str]:
    if not view.report.notes:
        return
    yield "## Seen, and no finding"
    yield ""
    for note in view.report.notes:
        would_be = f" (would be {inline(note.code)})" if note.code else ""
        links = _evidence(view, note.pid, note.evidence)
        yield f"- *{note.certainty}*: {inline(note.text)}{would_be}{links}"


def _not_watched(view: View) -> Iterator[str]:
    yield "## Not watched, not reached, not run"
    yield ""
    if not view.report.not_watched:
        yield "Nothing: every probe was live to the end."
        return
    for item in view.report.not_watched:
        weight = "**decisive**" if item.decisive else "not decisive"
        yield f"- {code(item.name)}, {weight}: {inline(facts.not_watched(item))}"


def _ended(view: View) -> Iterator[str]:
    yield "## How it ended"
    yield ""
    yield from _bullets(facts.ending(view.report.ended))
    for title, body in facts.outputs(view.report.ended):
        yield ""
        yield f"<details><summary>{title}</summary>"
        yield ""
        yield from fence(body, "text")
        yield ""
        yield "</details>"


def _environment(view: View) -> Iterator[str]:
    yield "## Environment"
    yield ""
    yield from table(
        ["What", "Value"],
        ([cell(what), cell_code(value)] for what, value in facts.environment(view.report)),
    )


def _replay(view: View) -> Iterator[str]:
    """The command as an indented block: what a fence would close after it, and it must be last."""
    if view.report.replay:
        yield "Repeat this run:"
        yield ""
        yield f"    {text.line(view.report.replay)}"
