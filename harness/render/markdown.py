"""``report.md``: the whole report for a code host, an issue or a step summary."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from harness.diagnosis.report import ErrorReport, Finding
from harness.events.values import Frame
from harness.render import facts, text
from harness.render import markdown_tables as tables
from harness.render.markdown_tables import evidence, section
from harness.render.markup import cell, cell_code, code, fence, inline, table
from harness.render.stacks import Row, fold
from harness.render.view import View
from harness.statements import Remedy, Stack


def render(view: View) -> str:
    """The report as Markdown; the last line is the command that repeats the run."""
    sections = [
        _top(view),
        _findings(view),
        _errors(view),
        _counts(view),
        tables.coverage(view),
        tables.contexts(view),
        tables.ladders(view),
        tables.caches(view),
        tables.memory(view),
        _notes(view),
        _not_watched(view),
        _ended(view),
        _environment(view),
        _replay(view),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _top(view: View) -> Iterator[str]:
    report = view.report
    yield f"# {inline(facts.title(report))}"
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
    words = "; ".join(f"*{name}*: {meaning}" for name, meaning in facts.CERTAINTY.items())
    intro = f"Each statement says how it is known. {words}."
    findings = view.report.findings
    return section("Findings", findings, partial(_finding, view), [intro])


def _finding(view: View, finding: Finding) -> Iterator[str]:
    yield f"### {inline(finding.code)} {inline(finding.title)} ({inline(view.standing(finding))})"
    yield ""
    for said in finding.statements:
        links = evidence(view, finding.pid, said.evidence)
        yield f"- *{said.certainty}*: {inline(said.text)}{links}"
    if finding.threads:
        yield f"- Threads: {inline(view.names(finding.threads))}"
    if finding.shared_state is not None:
        state = finding.shared_state
        yield ""
        yield from table(
            ["Shared state", "Writer", "Reader"],
            [[cell(state.name), cell(state.writer), cell(state.reader)]],
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
        f"{evidence(view, stack.thread.pid, stack.evidence)}"
        for stack in pair
    ]
    height = max(map(len, columns))
    yield from table(
        heads,
        ([(column[at] if at < len(column) else "") for column in columns] for at in range(height)),
    )


def _stack_cells(view: View, stack: Stack) -> list[str]:
    folded = fold(stack.frames)
    inside = folded.inside
    cells = []
    if inside:
        cells.append(f"in {_frame(inside, cell_code)} {inside.note}{_source(view, inside)}")
    for row in folded.rows:
        if row.folded:
            cells.append(f"… {cell(row.text)}")
        else:
            cells.append(f"{_frame(row, cell_code)}{_source(view, row)}")
    created = view.created(stack.thread)
    return [*cells, cell(created)] if created else cells


def _frame(row: Row, quote: Callable[[str], str]) -> str:
    return f"{quote(row.place)} {quote(row.text)}"


def _source(view: View, row: Row) -> str:
    """The source line under a frame in a table's cell, if there is one."""
    line = view.source(row.frame)
    return f"<br>{cell_code(line)}" if line else ""


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
    return section("Errors of every thread", view.report.errors, partial(_error, view))


def _error(view: View, error: ErrorReport) -> Iterator[str]:
    links = evidence(view, error.thread.pid, (error.evidence,))
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
            yield from _traceback(view, link_of.frames)


def _traceback(view: View, frames: Sequence[Frame]) -> Iterator[str]:
    """The frames of an exception, innermost first, folded, with their source lines."""
    folded = fold(reversed(frames))
    rows = [
        (f"- … {inline(row.text)}" if row.folded else f"- {_frame(row, code)}", row)
        for row in folded.rows
    ]
    if folded.inside:
        inside = f"- raised in {_frame(folded.inside, code)} {folded.inside.note}"
        rows.insert(0, (inside, folded.inside))
    for said, row in rows:
        line = view.source(row.frame)
        yield f"{said}: {code(line)}" if line else said


def _counts(view: View) -> Iterator[str]:
    yield "## Counts"
    yield ""
    for count in facts.counts(view.report):
        yield f"- **{count.number:,}** {count.what}"


# The rest -----------------------------------------------------------------------------------


def _notes(view: View) -> Iterator[str]:
    if not view.report.notes:
        return
    yield "## Seen, and no finding"
    yield ""
    for note in view.report.notes:
        would_be = f" (would be {inline(note.code)})" if note.code else ""
        links = evidence(view, note.pid, note.evidence)
        yield f"- *{note.certainty}*: {inline(note.text)}{would_be}{links}"


def _not_watched(view: View) -> Iterator[str]:
    yield "## Not watched, not reached, not run"
    yield ""
    if not view.report.not_watched:
        yield f"Nothing: {facts.all_watched(view.report)}."
        return
    for item in view.report.not_watched:
        weight = "**decisive**" if item.decisive else "not decisive"
        yield f"- {code(item.name)}, {weight}: {inline(facts.not_watched(item))}"


def _ended(view: View) -> Iterator[str]:
    yield "## How it ended"
    yield ""
    yield from tables.bullets(facts.ending(view.report.ended))
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
