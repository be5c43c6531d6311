"""Renderers of a report: terminal, Markdown, HTML and JSON, all from one object.

``write_all`` writes the files of a run folder, with the recording's trace beside the report;
``terminal.print_report`` prints.
"""

from collections.abc import Callable
from pathlib import Path

from harness.diagnosis.report import Report
from harness.events.files import write_whole
from harness.render import html as html_renderer
from harness.render import json as json_renderer
from harness.render import markdown
from harness.render.perfetto import TRACE, write_trace
from harness.render.view import View
from harness.timeline.recording import Recording

WRITERS: dict[str, Callable[[View], str]] = {
    "json": json_renderer.render,
    "md": markdown.render,
    "html": html_renderer.render,
}


def file_name(kind: str) -> str:
    """Name of the report's file of one kind (``json``, ``md`` or ``html``) in a run folder."""
    return f"report.{kind}"


def write_all(report: Report, folder: Path) -> dict[str, Path]:
    """Write ``report.json``, ``report.md``, ``report.html`` and ``trace.json``.

    The cited events are looked up in the folder's recording. The reports are rendered before the
    first is written, the trace comes last, and each file replaces an earlier one whole. Returns
    the reports' paths by kind. Raises OSError.
    """
    view = View.of(report, folder)
    texts = {kind: render(view) for kind, render in WRITERS.items()}
    paths = {kind: folder / file_name(kind) for kind in texts}
    for kind, text in texts.items():
        write_whole(paths[kind], text)
    write_trace(Recording(folder), folder / TRACE)
    return paths
