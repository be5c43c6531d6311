"""Single lines that say something by their words, and what tells how the process ended."""

import itertools
import re
import signal
from collections.abc import Iterable, Iterator

from harness.causes.messages import LINES
from harness.logs.facts import Fact, Place, Said, Signalled, Version
from harness.logs.prefix import Clean
from harness.logs.recompiles import LIMIT
from harness.logs.standing import quoted, stands

_MAX_TEXT = 600
_MAX_MESSAGES = 16
_SIGNALLED = re.compile(
    r"Signal (?P<elastic>\d{1,2}) \(SIG\w+\) received by PID"
    r"|exitcode\s{0,4}: (?P<code>-\d{1,2}) \(pid"
    r"|(?P<shell>Segmentation fault|Aborted|Bus error|Illegal instruction|Killed)"
    r"(?: {1,12}\(core dumped\))?\s*(?:$| {2,}\S)"
    r"|died with <Signals\.(?P<name>SIG\w+): \d+>"
)
_SHELL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Killed": signal.SIGKILL,
}
_VERSION = re.compile(
    r"(?:PyTorch version|torch version|torch\.__version__|^torch)\s{0,3}(?::|=|==| )\s{0,3}['\"]?"
    r"(\d+\.\d+\.\d+(?:\+[\w.]{1,20})?)",
    re.IGNORECASE,
)


class Sayings:
    """Recognises single lines."""

    busy = False

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        text = line.text
        if LIMIT not in text and (said := _message(text)):
            yield Said(place=place, text=said, thread=line.thread)
        if (found := _SIGNALLED.search(text)) and not quoted(text, found.start()):
            number = _signal(found)
            if number:
                yield Signalled(place=place, signal=number, text=text.strip()[:_MAX_TEXT])
        if found := _VERSION.search(text):
            yield Version(place=place, torch=found[1])

    def finish(self) -> Iterable[Fact]:
        """Nothing is left."""
        return []


def _message(text: str) -> str:
    """The line, or of a long one what begins with the message; empty if it says none."""
    for found in itertools.islice(LINES.finditer(text), _MAX_MESSAGES):
        if stands(text, found.start()):
            begin = 0 if found.end() <= _MAX_TEXT else found.start()
            return text[begin:].strip()[:_MAX_TEXT]
    return ""


def _signal(found: "re.Match[str]") -> int:
    if found["shell"]:
        # "Killed" alone on its line or before a command is a shell's; within a sentence it is not.
        return int(_SHELL[found["shell"]]) if found.start() == 0 or _pid_before(found) else 0
    if found["name"]:
        return int(getattr(signal, found["name"], 0))
    return int(found["elastic"] or found["code"].lstrip("-"))


def _pid_before(found: "re.Match[str]") -> bool:
    """Whether a shell's name, line and process id stand before: ``sh: line 1: 123 Killed``."""
    return re.search(r"\d+\s+$", found.string[: found.start()][-24:]) is not None
