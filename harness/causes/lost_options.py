"""Notes on options of ``torch.compile`` that a compile may not have run with.

``torch.compile(dynamic=...)`` patches ``torch._dynamo.config`` around each call
(``make_set_enable_dynamic`` in ``torch/_dynamo/eval_frame.py``). Up to torch 2.11 that config is
one for the process, so a call in one thread can undo the patch under another one's:
pytorch/pytorch#118260 and #111150. The entry that comes of it has static sizes where dynamic ones
were asked for, or the reverse.

CR305 says so where the recording tells what was asked for. One that does not can only be said to
hold compiles of one code object that differ in the config, which two ``torch.compile`` calls with
options of their own make as well.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.causes import versions, words
from harness.statements import Note
from harness.timeline.history import CodeHistory
from harness.timeline.model import Compile
from harness.timeline.timeline import Timeline

PATCHED = ("assume_static_by_default", "automatic_dynamic_shapes")


def lost_options(timeline: Timeline) -> list[Note]:
    """A note for each code object and option that its compiles in several threads differ in."""
    if timeline.torch == versions.UNKNOWN or timeline.torch >= versions.CONFIG_PER_THREAD:
        return []
    return [
        _note(timeline, history, option, groups)
        for history in timeline.program_codes()
        if not any(compile_.dynamic for compile_ in history.compiles)
        for option in PATCHED
        if _in_two_threads(groups := _by_value(history, option))
    ]


def _by_value(history: CodeHistory, option: str) -> dict[str, list[Compile]]:
    groups: dict[str, list[Compile]] = defaultdict(list)
    for compile_ in history.compiles:
        if compile_.context is not None:
            config = compile_.context.config
            value = f"`{config[option]!r}`" if option in config else "its default"
            groups[value].append(compile_)
    return groups


def _in_two_threads(groups: Mapping[str, Sequence[Compile]]) -> bool:
    """Whether different values were seen in different threads; one may have compiled it twice."""
    return len(groups) > 1 and len({c.on for compiles in groups.values() for c in compiles}) > 1


def _note(
    timeline: Timeline, history: CodeHistory, option: str, groups: Mapping[str, Sequence[Compile]]
) -> Note:
    said = words.listing(
        f"at {value} in " + words.listing(_place(timeline, compile_) for compile_ in compiles)
        for value, compiles in groups.items()
    )
    torch = timeline.header.data.torch if timeline.header else ""
    return Note(
        text=(
            f"`{history.code.name}` was compiled with `torch._dynamo.config.{option}` {said}. "
            f"Up to torch 2.11 (this is {torch}) the config is one for the process, and the patch "
            "that `torch.compile(dynamic=...)` makes around a call can be lost to another "
            "thread's (pytorch/pytorch#118260, #111150)."
        ),
        pid=timeline.pid,
        evidence=words.seqs(*(c.seqs[:1] for compiles in groups.values() for c in compiles)),
    )


def _place(timeline: Timeline, compile_: Compile) -> str:
    number = f" [{compile_.compile_id}]" if compile_.compile_id else ""
    return f"`{timeline.name(compile_.on)}`{number}"
