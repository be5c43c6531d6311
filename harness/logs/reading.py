"""From named texts to a run folder."""

from collections.abc import Iterator
from pathlib import Path

from dflash_min.errors import UsageError
from harness import __version__
from harness.child.privacy import mask
from harness.events.run import Run
from harness.logs.facts import Dump, Fact, Traceback
from harness.logs.keeping import MAX_PROCESSES, Keeping, Process
from harness.logs.recording import write_recording
from harness.logs.source import Text, texts_of
from harness.logs.streams import MAX_STREAMS, Streams


class NotRecognisedError(Exception):
    """Nothing in the texts says anything of compiles, errors, stacks or an end."""


def diagnose_texts(words: tuple[str, ...], folder: Path) -> Iterator[str]:
    """Read texts into a run folder, from which a report can be made. Yields what is to be said.

    Args:
        words: files, folders of traces, ``-``.
        folder: an empty folder.

    Raises:
        UsageError: a text is not there or cannot be read.
        NotRecognisedError: nothing in any of them is recognised.
    """
    keeping, streams = Keeping(), Streams()
    texts = texts_of(words)
    for text in texts:
        facts = keeping.facts
        _read(text, streams, keeping)
        if text.damage:
            yield f"{text.given} is read up to where it is damaged: {text.damage}"
        if keeping.facts == facts and len(texts) > 1:
            yield f"nothing in {text.given} is recognised"
    if not keeping.facts:
        what = texts[0].given if len(texts) == 1 else f"these {len(texts)} texts"
        raise NotRecognisedError(
            f"nothing in {what} is recognised ({streams.lines} lines): no traceback, no line of "
            "torch's compiler, no dump of stacks"
        )
    if streams.left_out:
        yield f"{streams.left_out:,} lines are left out: more than {MAX_STREAMS} processes wrote"
    if keeping.processes_left_out:
        number = f"{keeping.processes_left_out:,} messages"
        yield f"{number} are left out: they are of more than {MAX_PROCESSES} processes"
    processes = keeping.processes()
    run = Run(harness=__version__, prog="harness.diagnose", replay=_replay(processes))
    write_recording(folder, processes, run)


def _read(text: Text, streams: Streams, keeping: Keeping) -> None:
    try:
        for stream, fact in streams.read(text):
            keeping.add(stream, fact)
    except OSError as error:
        raise UsageError(f"cannot read {text.given}: {error.strerror or error}") from error


def _replay(processes: list[Process]) -> str:
    """The command that watches the program, as far as the texts name it."""
    for process in processes:
        for fact in process.facts:
            program = _program(fact)
            if program:
                return mask(f"python -m harness.watch -- {program}")
    return ""


def _program(fact: Fact) -> str:
    """The program's command line, or its script, if a fact names it."""
    if isinstance(fact, Dump) and fact.command:
        words = fact.command.split(" ")
        if "python" in words[0] and len(words) > 1:
            return " ".join(words[1:])
    if isinstance(fact, Traceback):
        for raised in fact.chain:
            outer = raised.frames[:1]
            if outer and outer[0].function == "<module>" and outer[0].user:
                return outer[0].file
    return ""
