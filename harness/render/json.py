"""``report.json``: the report as it is, keys in the order of its fields, and safe to print."""

from harness.diagnosis.report import dumps
from harness.render.text import hidden
from harness.render.view import View


def render(view: View) -> str:
    """The report's JSON. A reader gets back exactly the report's text: escapes are JSON's own."""
    text = dumps(view.report).decode()
    # JSON itself escapes control bytes below a space only.
    return "".join(_escaped(c) if c != "\n" and hidden(c) else c for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
