"""The cache inventory on a terminal: what was compiled, and which calls did not use it."""

from harness.diagnosis.report import CodeCache
from harness.phrases import count
from harness.render import facts
from harness.render.page import Page
from harness.render.text import words
from harness.render.view import View

TITLE = "Compiled functions: their entries, and the calls that used none"


def put(page: Page, view: View) -> None:
    """Print the inventory: all of it, however long."""
    page.heading(TITLE)
    if not view.report.caches:
        page.put(page.text("nothing was compiled"), 2)
    for cache in view.report.caches:
        _function(page, view, cache)


def _function(page: Page, view: View, cache: CodeCache) -> None:
    of = cache.code
    file = "/".join(of.file.split("/")[-2:])
    number = count(len(cache.entries), "entry", "entries")
    page.put(page.text(f"{of.name}, {file}:{of.line}", "bold"), 2)
    page.put(page.text(f"{number} {facts.read_when(cache)}"), 4)
    for entry in cache.entries:
        lead = page.text(f"{entry.compile_id or 'unknown':<8}", "bold")
        inputs = facts.entry_inputs(entry)
        said = "; ".join(filter(None, (entry.context, inputs, f"made by {view.made_by(entry)}")))
        if entry.same_as is not None:
            said += f"; its guards are those of {cache.entries[entry.same_as].compile_id}"
        page.put(page.text(words(said)), 4, lead)
    for no in cache.rejections:
        which = f"entry {no.entry}" if no.entry else "an entry"
        known = "" if no.certainty == "observed" else f" ({no.certainty})"
        said = f"{view.name(no.thread)}: {which} did not fit: {no.guard.strip()}{known}"
        page.put(page.text(words(said)), 4, page.text("missed  ", "yellow"))
    for use in cache.eager:
        page.put(page.text(words(view.eager(use))), 4, page.text("eager   ", "yellow"))
    if cache.left_out:
        page.put(page.text(facts.not_listed(cache), "dim"), 4)
