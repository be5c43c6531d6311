"""The report on one or two screens: what a person needs now, and where the rest is."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.diagnosis.report import ErrorReport, Finding, Report
from harness.phrases import count, listing
from harness.render import facts, inventory, memory
from harness.render.page import Page
from harness.render.stacks import fold, short_place
from harness.render.text import line, shorten, words
from harness.render.view import View, raised_at
from harness.statements import Stack

FULL = "report.md"
"""Where a reader finds what the terminal leaves out."""

COLOURS = {
    "found": "bold red",
    "clean": "bold green",
    "incomplete": "bold yellow",
    "failed": "bold magenta",
    "nothing ran": "bold yellow",
    "observed": "green",
    "inferred": "yellow",
    "unknown": "magenta",
}

ROOT_STATEMENTS = 6
OTHER_STATEMENTS = 1
EVENTS = 4
FRAMES = 7
BESIDE = 72
"""Columns from which two stacks stand side by side."""
ROOMY = 120
"""Columns from which there is room for source lines in both."""
ERRORS = 6
MESSAGE = 400
FUNCTIONS = 4
WATCHED = 8
NOTES = 3
NAMES = 7
"""Of more threads than these one fewer is named, and then how many more there are."""


def print_report(
    report: Report,
    console: Console | None = None,
    folder: Path | None = None,
    *,
    written: bool = True,
    kept: bool = True,
    caches: bool = False,
) -> None:
    """Print a report for a person.

    Args:
        report: what to print.
        console: where; the standard output if None.
        folder: the run folder that holds the recording and the full report, if there is one.
        written: the full report could be written there.
        kept: the folder stays; else it is not named.
        caches: print the inventory of what was compiled, too.
    """
    page = Page(console or Console())
    view = View.of(report, folder, most_names=NAMES)
    _top(page, view)
    for finding in report.findings:
        _finding(page, view, finding)
    _stacks(page, view)
    _errors(page, view)
    if report.verdict != "found":
        _coverage(page, view)
    _differences(page, view)
    if caches:
        inventory.put(page, view)
    _counts(page, view)
    _memory(page, view)
    _notes(page, view)
    _not_watched(page, view)
    _last(page, view, written=written, kept=kept)


def _cited(view: View, pid: int, seqs: Iterable[int]) -> str:
    """Event lines in brackets, the file named once: ``[events.jsonl:12, 15, +3 more]``."""
    labels = [label for label, _ in view.lines.labelled(pid, seqs)]
    if len(labels) > EVENTS:
        labels[EVENTS:] = [f"+{len(labels) - EVENTS} more"]
    return f" [{', '.join(labels)}]" if labels else ""


def _more(page: Page, left: int, noun: str, nouns: str = "", indent: int = 2) -> None:
    """Say how many were left out, if any were."""
    if left > 0:
        page.put(page.text(f"({count(left, f'more {noun}', nouns)} in {FULL})", "dim"), indent)


def _top(page: Page, view: View) -> None:
    report = view.report
    colour = COLOURS[report.verdict]
    if facts.says_verdict(report):
        page.put(page.text(words(report.headline), colour))
    else:
        verdict = page.join(page.text(report.verdict.upper(), colour), Text("  "))
        page.put(page.text(words(report.headline), "bold"), lead=verdict)
    page.blank()
    for way in view.chains:
        steps = page.text(" ▸ ", "dim").join(
            page.join(page.text(f.code, "bold"), page.text(f" {f.title}")) for f in way
        )
        page.put(steps)
    for root in view.roots:
        page.put(page.text(f"Explained by: {facts.EXPLAIN} {root}"))
    if not view.roots:
        meaning = f"{report.verdict}: {facts.VERDICTS[report.verdict]}"
        page.put(page.text(f"{meaning} (exit code {report.exit_code})."))


def _finding(page: Page, view: View, finding: Finding) -> None:
    page.heading(f"{finding.code} {finding.title} ({view.standing(finding)})")
    limit = ROOT_STATEMENTS if finding.root else OTHER_STATEMENTS
    for said in finding.statements[:limit]:
        lead = page.text(f"{said.certainty:<10}", COLOURS[said.certainty])
        cited = page.text(_cited(view, finding.pid, said.evidence), "dim")
        page.put(page.join(page.text(words(said.text)), cited), 2, lead)
    _more(page, len(finding.statements) - limit, "statement")
    state = finding.shared_state
    if state is not None:
        text = f"{state.name}; written by {state.writer}; read by {state.reader}"
        page.put(page.text(words(text)), 2, page.text("shared    "))
    if finding.root:
        page.put(page.text(words(finding.remedy.text)), 2, page.text("remedy    ", "bold"))
        if finding.remedy.snippet:
            page.code(finding.remedy.snippet, 6)


def _stacks(page: Page, view: View) -> None:
    """The two stacks that say most of what the report leads with: of a crash, else of the root."""
    with_stacks = [finding for finding in view.report.findings if finding.stacks]
    if not with_stacks:
        return
    leading = [finding for finding in view.leading if finding.stacks]
    crashes = {
        (error.thread.pid, code) for error in view.report.errors for code in error.explained_by
    }
    finding = max(
        leading or with_stacks,
        key=lambda each: (len(each.stacks) > 1, (each.pid, each.code) in crashes),
    )
    page.heading(f"Stacks of {finding.code}, innermost call first")
    shown = finding.stacks[:2]
    beside = len(shown) == 2 and page.width >= BESIDE
    source = not beside or page.width >= ROOMY
    columns = [_stack(page, view, stack, source=source) for stack in shown]
    if beside:
        page.columns(columns[0], columns[1], indent=2)
    else:
        for number, column in enumerate(columns):
            if number:
                page.blank()
            for each in column:
                page.put(each, 2)
    _more(page, sum(len(finding.stacks) for finding in with_stacks) - len(shown), "stack")


def _stack(page: Page, view: View, stack: Stack, *, source: bool) -> list[Text]:
    """The lines of a stack; ``source``: there is room for the source line under each frame."""
    folded = fold(stack.frames)
    lines = [page.text(view.name(stack.thread), "bold"), page.text(words(stack.title))]
    if folded.inside:
        inside = folded.inside
        lines.append(page.text(f"in {inside.text}, {inside.short} {inside.note}", "dim"))
    for row in folded.rows[:FRAMES]:
        if row.folded:
            lines.append(page.text(f"… {row.text}", "dim"))
        else:
            lines.append(page.join(page.text(f"{row.short} "), page.text(row.text, "bold")))
            if source and (said := view.source(row.frame)):
                lines.append(page.text(f"    {said}", "dim"))
    if len(folded.rows) > FRAMES:
        left = count(len(folded.rows) - FRAMES, "more row")
        lines.append(page.text(f"({left} in {FULL})", "dim"))
    created = view.created(stack.thread)
    return [*lines, page.text(created, "dim")] if created else lines


def _errors(page: Page, view: View) -> None:
    errors = view.report.errors
    if not errors:
        return
    page.heading(f"Errors of threads ({len(errors)})")
    groups = facts.same_errors(errors)
    for group in groups[:ERRORS]:
        _error(page, view, group)
    _more(page, sum(map(len, groups[ERRORS:])), "error")


def _error(page: Page, view: View, group: list[ErrorReport]) -> None:
    error = group[0]
    names = listing((view.name(each.thread) for each in group), NAMES)
    cited = _cited(view, error.thread.pid, [each.evidence for each in group])
    page.put(page.join(page.text(f"{names}: {facts.explained(error)}"), page.text(cited, "dim")), 2)
    message = shorten(f"{error.type}: {error.message}".strip(), MESSAGE, FULL)
    page.put(page.text(message, "red"), 4)
    for link in error.chain[1:3]:
        relation = facts.RELATIONS[link.relation].lower()
        message = shorten(f"{relation}: {link.type}: {link.message}".strip(), MESSAGE, FULL)
        page.put(page.text(message), 4)
    _more(page, len(error.chain) - 3, "linked exception", indent=4)
    at = next((frame for link in error.chain if (frame := raised_at(link))), None)
    if at is not None:
        page.put(page.text(f"at {short_place(at)} {at.function}", "dim"), 4)
        if said := view.source(at):
            page.put(page.text(said, "dim"), 8)


def _coverage(page: Page, view: View) -> None:
    covered = view.covered
    if not covered:
        return
    page.heading("Covered")
    for code in covered[:FUNCTIONS]:
        file = "/".join(code.code.file.split("/")[-2:])
        page.put(page.text(f"{code.code.name}, {file}:{code.code.line}", "bold"), 2)
        for made in facts.warmed(code):
            page.put(page.text(made), 4, page.text("warmed    "))
        for said in view.fared(code):
            page.put(page.text(said), 4, page.text("threads   "))
    _more(page, len(covered) - FUNCTIONS, "function")


def _differences(page: Page, view: View) -> None:
    if view.differences:
        page.heading("What the threads did not have in common")
        for said in view.differences:
            page.put(page.text(words(said)), 2)


def _counts(page: Page, view: View) -> None:
    page.heading("Counts")
    counts = facts.counts(view.report)
    width = max(len(f"{each.number:,}") for each in counts)
    for each in counts:
        page.put(page.text(each.what), 2, page.text(f"{each.number:>{width},}  ", "bold"))


def _memory(page: Page, view: View) -> None:
    sentences = memory.lines(view)
    if sentences:
        page.heading(memory.TITLE)
    for said in sentences[:WATCHED]:
        page.put(page.text(words(said)), 2)
    _more(page, len(sentences) - WATCHED, "line")


def _notes(page: Page, view: View) -> None:
    notes = view.report.notes
    if not notes:
        return
    page.heading("Seen, and no finding")
    for note in notes[:NOTES]:
        lead = page.text(f"{note.certainty:<10}", COLOURS[note.certainty])
        cited = page.text(_cited(view, note.pid, note.evidence), "dim")
        page.put(page.join(page.text(words(note.text)), cited), 2, lead)
    _more(page, len(notes) - NOTES, "note")


def _not_watched(page: Page, view: View) -> None:
    items = sorted(view.report.not_watched, key=lambda item: not item.decisive)
    page.heading("Not watched, not reached, not run")
    if not items:
        page.put(page.text(f"nothing: {facts.all_watched(view.report)}"), 2)
    for item in items[:WATCHED]:
        mark = " (decisive)" if item.decisive else ""
        page.put(page.text(words(f"{item.name}{mark}: {facts.not_watched(item)}")), 2)
    _more(page, len(items) - WATCHED, "item")


def _last(page: Page, view: View, *, written: bool, kept: bool) -> None:
    """How the process ended, where the full report is, and last the command that repeats it."""
    report = view.report
    of = report.environment
    page.blank()
    for said in facts.ending(report.ended):
        page.put(page.text(words(said)))
    for title, body in facts.outputs(report.ended):
        page.put(page.text(f"{title}: {count(len(body.splitlines()), 'line')} in {FULL}", "dim"))
    versions = [f"{name} {version}" for name, version in facts.versions(of)]
    if versions:
        page.put(page.text(", ".join(versions)))
    if view.folder is not None and written and kept:
        page.unfolded(page.text(f"Full report: {view.folder / 'report.html'}"))
    elif view.folder is not None and kept:
        page.put(page.text("The full report could not be written. The recording is in"))
        page.unfolded(page.text(str(view.folder)))
    if report.replay:
        page.put(page.text("Repeat this run:"))
        page.unfolded(page.text(line(report.replay), "bold cyan"))
