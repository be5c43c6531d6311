"""``python -m harness.explain CR101``: what a cause is, why it happens and what removes it."""

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import tyro
from rich.console import Console

from dflash_min.cli import parse
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.causes.base import Explanation
from harness.command import command
from harness.exits import ExitCode
from harness.render.output import reader_may_leave
from harness.render.page import Page
from harness.render.text import words

PROG = "harness.explain"
NEAREST = 3
"""How many causes are named where an unknown one is asked for."""


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
        UsageError: there is none; it names the nearest ones.
    """
    by_title = {each.title: each for each in known.values()}
    number = re.fullmatch(r"(?:cr)?(\d+)", word.lower())
    if number:
        code, near = f"CR{number[1]}", _near_codes(int(number[1]), known)
        if code in known:
            return known[code]
    else:
        if word.lower() in by_title:
            return by_title[word.lower()]
        near = difflib.get_close_matches(word.lower(), by_title, n=NEAREST, cutoff=0.5)
        near = [by_title[title].code for title in near]
    names = ", ".join(f"{code} {known[code].title}" for code in near)
    raise UsageError(f"unknown cause {word!r}; {f'nearest: {names}' if names else 'see --list'}")


def _near_codes(number: int, known: Mapping[str, Explanation]) -> list[str]:
    """The codes next to a number, those of its own hundred first."""

    def distance(code: str) -> tuple[bool, int]:
        other = int(code[2:])
        return other // 100 != number // 100, abs(other - number)

    return sorted(known, key=distance)[:NEAREST]


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
        page.code(explanation.remedy.snippet, 4)
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


@command(PROG)
def main(argv: list[str]) -> int:
    """Explain causes; returns the exit code."""
    args = parse(Args, argv, prog=PROG, description="Explain a cause that a report names.")
    known = explanations()
    if not args.codes and not args.all:
        raise UsageError("name a cause, such as CR101, or give --list")
    if args.codes and args.all:
        raise UsageError(f"--list lists every cause: leave it or {' '.join(args.codes)} out")
    wanted = [look_up(word, known) for word in args.codes]
    if args.all:
        wanted = [*known.values()]
    with reader_may_leave():
        if args.as_json:
            content = wanted[0] if len(args.codes) == 1 else wanted
            print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())
        elif args.all:
            print_list(known)
        else:
            for number, explanation in enumerate(wanted):
                print("\n" * bool(number), end="")
                print_explanation(explanation)
    return ExitCode.CLEAN


if __name__ == "__main__":
    sys.exit(main())
