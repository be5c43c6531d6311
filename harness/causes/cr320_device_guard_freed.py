"""CR320: on a CUDA build without a GPU, a compile calls what was freed with a thread that ended."""

import signal
from collections.abc import Sequence

from harness.causes import crashed, versions, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.crashed import Crash
from harness.causes.endings import CRASHES, crash_signal, stacks_kept
from harness.events.schema import Header
from harness.events.values import Frame
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR320",
    title="device-guard-freed-with-its-thread",
    what=(
        "A CUDA build of torch runs where no GPU is visible, as on a CPU-only CI runner with the "
        "default wheel. The first compile of the process is made by a thread that then ends. The "
        "next compile, in whatever thread and of whatever function, dies of SIGSEGV in "
        "`FakeTensorMode.__enter__`."
    ),
    why=(
        "From torch 2.10 on, where CUDA is built in and there is no device, a compile puts a "
        "stand-in for CUDA's device guard into a table of the whole process "
        "(`ensureCUDADeviceGuardSet` in `c10/core/impl/DeviceGuardImplInterface.cpp`), unless the "
        "one there says that it has a device. In 2.10 and 2.11 the stand-in is a thread-local of "
        "the thread that put it there: the thread's end frees it, and the table keeps its address. "
        "The next compile asks it how many devices it has. From 2.12 on it lives as long as the "
        "process. What was freed may still be readable for a while, so a run can go well by luck."
    ),
    evidence=(
        "SIGSEGV or SIGBUS, which a call through freed memory can raise, with "
        "`FakeTensorMode.__enter__` as the innermost Python frame, a CUDA build of torch 2.10 or "
        "2.11, no GPU seen, and the first compile of the process in a thread that had ended. "
        "That the guard was freed with that thread is inferred: it leaves no trace in the "
        "recording. Something else that entered a fake tensor mode first was not recorded either."
    ),
    remedy=Remedy(
        text=(
            "Compile something in a thread that lives as long as the process, the main one, before "
            "any other thread compiles; or install torch's CPU wheel where there is no GPU; or use "
            "torch 2.12 or newer."
        ),
        snippet=(
            "# in the main thread, before the others start\n"
            'torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))'
        ),
        seen_to_work=(
            "a compile in the main thread: torch 2.10.0 (CUDA 12.8) and 2.11.0 (CUDA 13.0), no "
            "GPU; newer torch: 2.12.0, 2.12.1, 2.13.0 and 2.14.1 (CUDA 13.0), no GPU"
        ),
    ),
    versions=(
        "CUDA builds of 2.10 and 2.11 where no GPU is visible (seen on 2.10.0 and 2.11.0; not on "
        "2.9.1, 2.12.0, 2.12.1, 2.13.0 and 2.14.1)"
    ),
    upstream=("pytorch/pytorch#178950", "pytorch/pytorch#160532"),
    needs=("threads", "compiles"),
    may_follow=("CR1", "CR2", "CR303", "CR319"),
)

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS)
"""Memory that is not there. Seen was SIGSEGV alone; a SIGABRT is a decision of somebody's code."""
_FILE = "torch/_subclasses/fake_tensor.py"
_FUNCTION = "__enter__"
"""The one of that file is ``FakeTensorMode``'s: 2.10 and 2.11."""


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """A crash where the freed guard is called."""
    number = crash_signal(timeline)
    header = timeline.header
    if number not in _SIGNALS or header is None or any(found.ends for found in earlier):
        return Outcome()
    if not _can_happen(timeline, header):
        return Outcome()
    crash = crashed.crashed(timeline)
    first = _first_compile(timeline)
    if crash is None or first is None or not _enters_fake_mode(crash.frames[0]):
        return Outcome()
    thread = timeline.threads.get(first.on)
    if thread is None or not thread.ended:
        return Outcome()
    return Outcome(found=[_finding(timeline, header, number, crash, first)])


def _can_happen(timeline: Timeline, header: Header) -> bool:
    """Whether it is a CUDA build of a torch that frees the guard, as far as that is known."""
    return versions.frees_device_guard(timeline.torch, header.data.cuda) and not timeline.gpus


def _enters_fake_mode(frame: Frame) -> bool:
    return frame.function == _FUNCTION and frame.file.replace("\\", "/").endswith(_FILE)


def _first_compile(timeline: Timeline) -> Compile | None:
    """The process's first compile, torch's own functions' included; None if it is not known."""
    known = [compile_ for history in timeline.codes.values() for compile_ in history.compiles]
    first = min(known, key=lambda compile_: compile_.t0, default=None)
    if first is None or first.before or timeline.folded.codes or not timeline.saw_all():
        return None
    return first


def _finding(
    timeline: Timeline, header: Header, number: int, crash: Crash, first: Compile
) -> Found:
    ended = timeline.ended
    assert ended is not None
    own = ended.signal is not None
    how = "ended the process" if own else "ended it, to judge by its exit code"
    maker = f"`{timeline.name(first.on)}`"
    name = CRASHES[number]
    # The recording ends with the crash, so whichever compile had not ended was under way.
    open_ = [compile_ for compile_ in timeline.open_compiles() if compile_.on == crash.tid]
    tids = [first.on, *([crash.tid] if crash.tid is not None else [])]
    return Found(
        code="CR320",
        statements=(
            Statement(f"{name} {how}.", "observed" if own else "inferred"),
            crashed.statement(timeline, crash),
            _compiled_first(timeline, first),
            *(_under_way(timeline, compile_) for compile_ in open_),
            _build(header),
            _freed(maker),
            *stacks_kept(ended),
        ),
        headline=(
            f"The process died of {name} in a compile: the first one was made by thread {maker}, "
            "which has ended, and on a CUDA build without a GPU torch 2.10 and 2.11 free their "
            "device guard with that thread."
        ),
        because=frozenset(seq for compile_ in open_ for seq in compile_.seqs),
        ends=True,
        threads=words.refs(timeline, tids),
        stacks=(
            crashed.stack(timeline, crash),
            words.stack(timeline, first.on, "compiled first", first.where, first.seqs[0]),
        ),
        shared_state=SharedState(
            name="the device guard that torch has registered for CUDA",
            writer=f"{maker}, whose compile registered one that is freed when the thread ends",
            reader=f"{_who(timeline, crash)}, which called it on its way into a compile",
        ),
    )


def _compiled_first(timeline: Timeline, first: Compile) -> Statement:
    thread = timeline.threads[first.on]
    number = f" [{first.compile_id}]" if first.compile_id else ""
    text = (
        f"`{thread.name}` made the first compile of the process, `{first.code.name}`{number}, at "
        f"{timeline.seconds(first.t0):.3f} s, and ended at {timeline.seconds(thread.t1):.3f} s."
    )
    return Statement(text, "observed", words.seqs(first.seqs, (thread.last_seq,)))


def _under_way(timeline: Timeline, compile_: Compile) -> Statement:
    number = f" [{compile_.compile_id}]" if compile_.compile_id else ""
    text = (
        f"`{timeline.name(compile_.on)}` was in the compile of `{compile_.code.name}`{number}, "
        f"begun at {timeline.seconds(compile_.t0):.3f} s."
    )
    return Statement(text, "observed", words.seqs(compile_.seqs))


def _build(header: Header) -> Statement:
    text = (
        f"torch {header.data.torch} is a build for CUDA ({header.data.cuda}), and saw no GPU: the "
        "program did not initialise CUDA, and a compile calls the guard only where none is there."
    )
    return Statement(text, "inferred", (header.seq,))


def _freed(maker: str) -> Statement:
    text = (
        f"The guard that it called had been freed when {maker} ended: in torch 2.10 and 2.11 it "
        "belongs to the thread of the first compile."
    )
    return Statement(text, "inferred")


def _who(timeline: Timeline, crash: Crash) -> str:
    return f"`{timeline.name(crash.tid)}`" if crash.tid is not None else "the thread that crashed"
