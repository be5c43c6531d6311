"""``python -m harness.explain CR101``: what a cause is, why it happens and what removes it."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import tyro
from rich.console import Console

from dflash_min.cli import fail, parse
from harness.causes import CAUSES
from harness.causes.base import Explanation
from harness.exits import ExitCode
from harness.render.page import Page
from harness.render.text import words

PROG = "harness.explain"


@dataclass(frozen=True)
class Args:
    """What to explain."""

    codes: tyro.conf.Positional[tuple[str, ...]] = ()
    """Cause codes such as CR101, or their names such as grad-mode."""

    all: Annotated[bool, tyro.conf.arg(name="list")] = False
    """List every cause."""

    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print JSON instead of text; with --list, all of every explanation."""


def explanations() -> dict[str, Explanation]:
    """Every cause's explanation by its code, in the order of the codes."""
    known = (cause.EXPLANATION for cause in CAUSES)
    return {each.code: each for each in sorted(known, key=lambda each: each.code)}


def look_up(word: str, known: Mapping[str, Explanation]) -> Explanation:
    """The explanation for a code or a name, in any case.

    Raises:
        KeyError: there is none; the argument says so and names the nearest ones.
    """
    by_word = {each.code.lower(): each for each in known.values()}
    by_word |= {each.title.lower(): each for each in known.values()}
    if word.lower() in by_word:
        return by_word[word.lower()]
    near = difflib.get_close_matches(word.lower(), by_word, n=3, cutoff=0.5)
    names = list(dict.fromkeys(f"{by_word[hit].code} {by_word[hit].title}" for hit in near))
    hint = f"nearest: {', '.join(names)}" if names else "see --list"
    raise KeyError(f"unknown cause {word!r}; {hint}")


def print_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """Print one explanation for a person."""
    page = Page(console or Console())
    page.put(page.text(f"{explanation.code} {explanation.title}", "bold red"))
    for title, body in (
        ("What happens", explanation.what),
        ("Why", explanation.why),
        ("Evidence needed", explanation.evidence),
        ("Remedy", explanation.remedy.text),
    ):
        page.heading(title)
        page.put(page.text(words(body)), 2)
    if explanation.remedy.snippet:
        page.blank()
        page.put(page.text(explanation.remedy.snippet.strip("\n"), "cyan"), 4)
    if explanation.remedy.seen_to_work:
        page.blank()
        page.put(page.text(words(f"Seen to work: {explanation.remedy.seen_to_work}")), 2)
    for title, body in (
        ("Torch versions", explanation.versions),
        ("Public threads", ", ".join(explanation.upstream) or "none known"),
        ("Probes it needs", ", ".join(explanation.needs) or "none"),
    ):
        page.heading(title)
        page.put(page.text(words(body)), 2)


def print_list(known: Mapping[str, Explanation], console: Console | None = None) -> None:
    """Print every code with its name."""
    page = Page(console or Console())
    for each in known.values():
        page.put(page.text(each.title), lead=page.text(f"{each.code}  ", "bold"))


def main(argv: Sequence[str] | None = None) -> int:
    """Explain causes. Returns the exit code; an unknown code raises SystemExit(2)."""
    args = parse(
        Args,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Explain a cause that a report names.",
    )
    known = explanations()
    if not args.codes and not args.all:
        fail(PROG, "name a cause, such as CR101, or give --list")
    try:
        wanted = [look_up(word, known) for word in args.codes]
    except KeyError as error:
        fail(PROG, error.args[0])
    if args.all:
        wanted = [*known.values()]
    if args.as_json:
        content = wanted[0] if len(args.codes) == 1 and not args.all else wanted
        print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())
    elif args.all:
        print_list(known)
    else:
        for number, explanation in enumerate(wanted):
            print("\n" * bool(number), end="")
            print_explanation(explanation)
    return ExitCode.CLEAN


if __name__ == "__main__":
    raise SystemExit(main())
