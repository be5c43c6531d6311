"""A certificate as text for a terminal and as Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from harness.certificate.model import Cell, Certificate, Suggestion
from harness.phrases import count
from harness.render import markup
from harness.render.text import line, words

_CELLS = 12
_TRIED = 8


def terminal(certificate: Certificate) -> str:
    """What a person needs now; ``certificate.md`` has the rest."""
    return "\n".join(_terminal(certificate)) + "\n"


def markdown(certificate: Certificate) -> str:
    """All of it."""
    return "\n".join(_markdown(certificate)) + "\n"


def _terminal(certificate: Certificate) -> Iterator[str]:
    yield f"{certificate.verdict.upper()}  {words(certificate.headline)}"
    yield ""
    shown = [run for run in certificate.tested if run.kind != "clean"][:_TRIED]
    for run in shown:
        yield f"{run.kind:<12} {run.what} {line(run.name)}: {words(run.headline)}"
    for reported in certificate.reported:
        yield f"again        --schedule-token {reported.token}"
    for plan in certificate.not_run:
        yield f"not run      {plan.name}: {words(plan.reason)}"
    reached = [point for point in certificate.points if point.runs]
    never = [point.point for point in certificate.points if not point.runs]
    yield f"reached      {', '.join(p.point for p in reached) or 'no point'}"
    yield f"never        {', '.join(never) or 'none'}"
    yield ""
    # What decides comes first, and what was called before what was only asked about.
    cells = sorted(certificate.coverage, key=lambda cell: (not cell.missed, not cell.ran))
    for cell in cells[:_CELLS]:
        yield f"{cell.state:<20} {line(cell.callable)} on {cell.device}, {line(cell.context)}"
        yield f"{'':<20} {line(cell.inputs)}"
        yield f"{'':<20} by running: {by_running(cell)}; by asking: {by_asking(cell)}"
    if len(cells) > _CELLS:
        yield f"and {len(cells) - _CELLS} more in certificate.md"
    if certificate.left_out:
        yield _left_out(certificate)
    if certificate.suggestion is not None:
        yield ""
        yield from _suggestion(certificate.suggestion)
    if certificate.after is not None:
        yield ""
        yield "With it:"
        yield from _terminal(certificate.after)


def _suggestion(suggestion: Suggestion) -> Iterator[str]:
    yield f"This warm-up covers what is missing. {words(suggestion.why)}"
    yield from (f"    {line_}" for line_ in suggestion.lines)
    if suggestion.obstacle:
        yield f"--apply cannot run it: {words(suggestion.obstacle)}"


def by_running(cell: Cell) -> str:
    """``hit 6 of 6`` and what else is to be said."""
    if not cell.ran:
        return "in the warm-up only" if cell.warmed else "never called"
    parts = [f"hit {cell.hit} of {cell.ran}"]
    parts += [f"{cell.raced} beside another thread's compile"] if cell.raced else []
    return ", ".join(parts)


def by_asking(cell: Cell) -> str:
    """``fits 6 of 6``, or what rejected it."""
    asked = cell.fits + cell.rejected
    if not asked:
        return "not asked"
    parts = [f"fits {cell.fits} of {asked}"]
    if cell.rejected:
        parts.append("; ".join(map(line, cell.guards)) or "there was no entry")
    parts += [f"an entry made after the warm-up fits {cell.fits_later}"] if cell.fits_later else []
    parts += [f"disagrees in {cell.disagreed}"] if cell.disagreed else []
    return ", ".join(parts)


def _markdown(certificate: Certificate) -> Iterator[str]:
    yield f"# {certificate.verdict.capitalize()}"
    yield ""
    yield markup.inline(certificate.headline)
    yield ""
    yield f"- program: {markup.code(' '.join(certificate.argv) or 'the trainer as it is')}"
    yield f"- torch {certificate.torch}, python {certificate.python}, {certificate.wall_s:.0f} s"
    yield f"- the warm-up ends where {markup.inline(certificate.warmup_ends)}"
    yield ""
    yield "## Runs"
    yield ""
    yield from _table(
        ("what", "name", "schedule", "came to", "compiles after warm-up"),
        (
            (
                run.what,
                run.name,
                markup.cell_code(run.schedule),
                markup.cell(" ".join((run.kind, *run.roots))),
                str(run.compiles_after_warmup),
            )
            for run in certificate.tested
        ),
    )
    yield from _notes(certificate)
    yield "## Points after the warm-up"
    yield ""
    yield from _table(
        ("point", "threads", "runs"),
        (
            (p.point, ", ".join(p.threads) or "none", f"{p.runs} of {len(certificate.tested)}")
            for p in certificate.points
        ),
    )
    yield "## Coverage"
    yield ""
    yield from _table(
        ("callable", "device", "context", "inputs", "state", "by running", "by asking", "threads"),
        (_row(cell) for cell in certificate.coverage),
    )
    if certificate.left_out:
        yield _left_out(certificate)
        yield ""
    if certificate.suggestion is not None:
        yield from _suggestion_section(certificate.suggestion)
    if certificate.command:
        yield f"Again: {markup.code(certificate.command)}"
    if certificate.after is not None:
        yield ""
        yield "---"
        yield ""
        yield "With that warm-up:"
        yield ""
        yield from _markdown(certificate.after)


def _left_out(certificate: Certificate) -> str:
    return f"{count(certificate.left_out, 'call')} or more are left out: there were too many."


def _suggestion_section(suggestion: Suggestion) -> Iterator[str]:
    yield "## Warm-up that covers what is missing"
    yield ""
    yield markup.inline(suggestion.why)
    yield ""
    yield from markup.fence("\n".join(suggestion.lines))
    yield ""
    if suggestion.obstacle:
        yield f"It cannot be applied here: {markup.inline(suggestion.obstacle)}."
        yield ""


def _notes(certificate: Certificate) -> Iterator[str]:
    for plan in certificate.not_run:
        yield f"- plan {plan.name} was not run: {markup.inline(plan.reason)}"
    for run in certificate.tested:
        if run.kind not in {"clean", "found"}:
            name = f"{run.what} {run.name}, {run.kind}"
            yield f"- {markup.inline(name)}: {markup.inline(run.headline)}"
    for reported in certificate.reported:
        yield (
            f"- {' '.join(reported.roots)}, replayed {reported.said}: "
            f"{markup.code(f'--schedule-token {reported.token}')}"
        )
    yield ""


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        markup.cell_code(cell.callable),
        cell.device,
        markup.cell(cell.context),
        markup.cell_code(cell.inputs),
        cell.state,
        by_running(cell),
        markup.cell(by_asking(cell)),
        markup.cell(", ".join(cell.threads)),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from markup.table(heads, rows)
    yield ""
