"""``report.html``: one file without scripts or outside resources, made from one template."""

from collections.abc import Sequence
from functools import cache

import jinja2
from markupsafe import Markup, escape

from harness.events.values import Frame
from harness.phrases import count
from harness.render import facts, memory, text
from harness.render.lanes import lanes
from harness.render.lines import EventLine
from harness.render.stacks import Folded, fold, place
from harness.render.view import View

RAW_LIMIT = 4000
"""Characters of an event's line that the page shows; the recording has the rest."""


def render(view: View) -> str:
    """The report as a page. All text is escaped, and shown with its control bytes visible."""
    page = _environment().get_template("report.html.j2")
    return page.render(
        view=view,
        report=view.report,
        facts=facts,
        memory=memory,
        counts=facts.counts(view.report),
        lanes=lanes(view.report.threads),
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters |= {
        "sentence": _sentence,
        "fold": fold,
        "traceback": _traceback,
        "place": place,
        "line": text.line,
        "raw": _raw,
        "plural": count,
    }
    return environment


def _shown(value: object) -> object:
    """Every value that the template prints passes here, so that none can be forgotten."""
    return text.block(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _sentence(sentence: str) -> Markup:
    """A sentence with its `quoted code` as code elements."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if kind == "code" else escape(part)
        for kind, part in text.spans(text.words(sentence))
    )


def _traceback(frames: Sequence[Frame]) -> Folded:
    """An exception's frames, which run from the outermost on, folded."""
    return fold(reversed(frames))


def _raw(event: EventLine) -> str:
    return text.shorten(text.line(event.raw), RAW_LIMIT, event.label)
