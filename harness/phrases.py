"""Numbers and lists in words, for every sentence that is written for people."""

import re
from collections.abc import Iterable


def count(number: int, noun: str, nouns: str = "") -> str:
    """``1 thread``, ``3 threads``; ``nouns`` where the plural is irregular."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def times(number: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def quoted(text: str) -> str:
    """Any text as code within a sentence: ``  `f`  ``, and one that holds backticks in longer ones.

    As in Markdown: the ticks around it are more than in any run inside, with a space between where
    it begins or ends with one. White space of every kind becomes one space.
    """
    text = " ".join(text.split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def listing(items: Iterable[str], limit: int | None = None, last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``, each once; past ``limit``, ``a, b, c and 5 more``."""
    shown = list(dict.fromkeys(items))
    if limit is not None and len(shown) > limit:
        shown = [*shown[: limit - 1], f"{len(shown) - limit + 1:,} more"]
    return f" {last} ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else ""
