"""What people read of a gate: the terminal, GitHub's step summary, annotations of lines."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.gating.compare import Judged
from harness.gating.outcome import Gate, name_of
from harness.render import markup, text
from harness.render.stacks import short_place

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
MOST_BYTES = 1 << 20
"""Of a step's summary, all that it held before included (GitHub's documentation, Job summaries)."""
_ANNOTATIONS = 10
"""So many errors of a step GitHub shows (its documentation, Setting an error message)."""
_SHOWN = 5
_SAID = 600


def terminal(gate: Gate, out: Path) -> str:
    """Plain text: what broke first, the rest in a line each."""
    lines = [text.words(gate.headline)]
    for one in gate.bad:
        lines += ["", f"{one.status.upper()}  {text.words(name_of(one))}", *_about(one)]
    lines.append("")
    for one in gate.judged:
        lines.append(f"{one.status:<10}  {one.measured.result:<12}  {text.words(name_of(one))}")
    for left in gate.left_out:
        lines.append(f"left out    {left.name}: {left.because}")
    lines += ["", f"{_where(gate)}; everything is in {out}"]
    return text.block("\n".join(lines)) + "\n"


def _about(one: Judged) -> Iterator[str]:
    measured = one.measured
    yield f"  {text.words(one.because)}"
    if measured.said and measured.said not in one.because:
        yield f"  {text.shorten(text.words(measured.said), _SAID, measured.folder)}"
    if one.since:
        yield f"  since: it was {one.was} at {one.since}"
    if measured.frames:
        yield f"  at: {short_place(measured.frames[0])}"
    if measured.reproduce:
        yield f"  reproduce: {measured.reproduce}"
    if measured.folder:
        yield f"  files: {measured.folder}"


def _where(gate: Gate) -> str:
    on = gate.device if not gate.gpus else f"{gate.gpus} of {gate.device}"
    return f"torch {gate.torch}, {on}, {gate.seconds:.0f} s"


def markdown(gate: Gate) -> str:
    """GitHub's Markdown; its first screen has what broke, since when, and how to see it again."""
    bad = gate.bad
    lines = [f"## Compile races: {markup.inline(gate.headline)}", ""]
    for one in bad[:_SHOWN]:
        lines += [*_section(one), ""]
    if len(bad) > _SHOWN:
        lines += [f"{len(bad) - _SHOWN} more are in the table.", ""]
    rows = [_row(one) for one in (*bad, *(one for one in gate.judged if one.status == "same"))]
    heads = ("status", "what", "result", "baseline", "since", "s")
    lines += [*markup.table(heads, rows), "", markup.inline(_where(gate))]
    if gate.left_out:
        names = ", ".join(f"{left.name} ({left.because})" for left in gate.left_out)
        lines += ["", markup.inline(f"Left out here: {names}")]
    return "\n".join(lines) + "\n"


def _section(one: Judged) -> Iterator[str]:
    measured = one.measured
    yield f"### {one.status}: {markup.inline(name_of(one))}"
    yield ""
    yield f"{markup.inline(one.because)}  "
    if measured.said and measured.said not in one.because:
        yield f"> {markup.inline(text.shorten(measured.said, _SAID, measured.folder))}"
        yield ""
    if one.since:
        yield f"Since: it was {markup.inline(one.was)} at {markup.inline(one.since)}.  "
    if measured.reproduce:
        yield f"Reproduce: {markup.code(measured.reproduce)}"


def _row(one: Judged) -> tuple[str, ...]:
    measured = one.measured
    return (
        one.status,
        markup.cell_code(name_of(one)),
        markup.cell(measured.result),
        markup.cell(one.was),
        markup.cell(one.since),
        f"{measured.seconds:.0f}",
    )


def add_step_summary(gate: Gate, environment: Mapping[str, str]) -> str:
    """Append to the step's summary, where the environment names one.

    Returns:
        Why that could not be done; empty if it was, or was not asked for.
    """
    name = environment.get(STEP_SUMMARY)
    if not name:
        return ""
    path = Path(name)
    try:
        room = MOST_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("ab") as file:
            file.write(within(markdown(gate), room))
    except OSError as error:
        return f"the step summary cannot be written: {error.strerror or error}"
    return ""


def within(whole: str, room: int) -> bytes:
    """A text's first lines, as many as fit into so many bytes, and a note if some do not."""
    encoded = whole.encode()
    if len(encoded) <= room:
        return encoded
    note = b"\n\nThe rest did not fit; it is in gate.json.\n"
    if room < len(note):
        return b""
    kept = encoded[: room - len(note)]
    return kept[: kept.rfind(b"\n") + 1] + note


def annotations(gate: Gate, root: Path) -> list[str]:
    """``::error`` commands for the program's lines (GitHub's documentation, Workflow commands).

    Args:
        gate: the outcome.
        root: the checkout: only what lies in it can be annotated.
    """
    found = []
    for one in gate.bad[:_ANNOTATIONS]:
        measured = one.measured
        at = ""
        for frame in measured.frames:
            path = Path(frame.file)
            if path.is_absolute() and path.is_relative_to(root):
                at = f"file={_property(str(path.relative_to(root)))},line={frame.line},"
                break
        title = f"{one.status}: {name_of(one)}"
        said = " ".join(part for part in (one.because, measured.said, measured.reproduce) if part)
        found.append(f"::error {at}title={_property(title)}::{_data(said)}")
    return found


def checkout(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where GitHub has checked the repository out; None: this is no GitHub job."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    return Path(environment.get("GITHUB_WORKSPACE") or Path.cwd())


def _data(value: str) -> str:
    value = text.block(value)
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
