"""What the benches' command lines share: help that tells the figure and its time, clear refusals.

At import of the standard library only, and nothing of argparse for programs that are measured
themselves.
"""

import importlib.util
import math
import sys
from pathlib import Path


def parser(about):
    """A parser whose help is a bench's whole docstring: its figure, and how long that takes."""
    import argparse

    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def whole(least, most):
    """What reads an option's whole number, within bounds."""
    return _number(int, "a whole number", least, most)


def decimal(least, most):
    """What reads an option's number, within bounds; a NaN is in none."""
    return _number(float, "a number", least, most)


def _number(kind, what, least, most):
    import argparse

    def read(word):
        try:
            value = kind(word)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{what} from {least} to {most} is needed, not {word}")
        return value

    return read


def writable(word):
    """What reads an option's file, before a bench of minutes that is to be written to it."""
    import argparse

    path = Path(word)
    if not word.strip() or path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written to {word!r}")
    return path


def readable(word):
    """What reads an option's file of figures."""
    import argparse

    path = Path(word)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {word!r}")
    return path


def layout(word):
    """What reads an option's numbers of target and drafter threads, such as 5+3."""
    import argparse

    from dflash_min.errors import UsageError
    from dflash_min.layout import deal

    try:
        deal("cpu", 0, threads=None, counts=word, targets=None, drafters=None)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return word


def under_the_watch(about, starter):
    """End a program that only works under the watch, unless it runs there: say what starts it."""
    if importlib.util.find_spec("_compile_race_child") is not None:
        return
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{about.strip()}\n\nStarted by: {starter}")
        raise SystemExit(0)
    name = Path(sys.argv[0]).name
    print(f"{name}: error: it runs under the watch only: {starter} starts it", file=sys.stderr)
    raise SystemExit(2)
