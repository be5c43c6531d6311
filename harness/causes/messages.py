"""Which messages of torch's, CUDA's and triton's prove or suggest a cause by their words alone.

For diagnosis from texts: where a program was not watched, its messages are what there is. A frame
of ``compile_wrapper`` proves nothing and is in no row. Wordings are those of torch 2.9 to 2.15 and
triton 3.6 (see each cause for the mechanism).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Found
from harness.causes.errors import explained, short
from harness.events.values import ErrorLink
from harness.phrases import quoted
from harness.statements import Certainty, Stack, Statement
from harness.timeline.model import ErrorSeen, SaidSeen
from harness.timeline.timeline import Timeline


@dataclass(frozen=True)
class Message:
    """A message and what it tells.

    Attributes:
        code: the cause.
        pattern: found in ``Type: message`` of an exception, or in a line.
        tells: what follows from it, as a sentence.
        sure: whether the message itself says so, or something else could have made it too.
        frame: where given, must be found in ``file function`` of one of the exception's innermost
            frames; such a message counts with its traceback only.
    """

    code: str
    pattern: re.Pattern[str]
    tells: str
    sure: Certainty = "inferred"
    frame: re.Pattern[str] | None = None


def _row(
    code: str, pattern: str, tells: str, sure: Certainty = "inferred", frame: str = ""
) -> Message:
    return Message(code, re.compile(pattern), tells, sure, re.compile(frame) if frame else None)


MESSAGES: tuple[Message, ...] = (
    _row(
        "CR301",
        r"Detected that you are using FX to symbolically trace a dynamo-optimized function",
        "Another thread's FX trace set the flag, which up to torch 2.13 is one for the process. "
        "Where the program itself traces compiled code, the message is no race.",
    ),
    _row(
        "CR308",
        r"CURRENT_PATCHER is None in finally block|Expected current_level > 0, got",
        "Two threads traced with FX at once: each patches `torch.nn.Module` for the whole process "
        "and undoes the other's patch.",
    ),
    _row(
        "CR310",
        r"^KeyError: 'custom'",
        "The annotation was removed between its beginning and its end, which only another thread "
        "does: annotations are one dict for the process.",
        "inferred",
        r"torch/fx/traceback\.py annotate$",
    ),
    _row(
        "CR309",
        r"fullgraph=True found no compiled frames\. Compilation was not attempted and no cached",
        "Under `fullgraph=True` torch counts compiled calls in one counter for the process, which "
        "another thread's call set back.",
    ),
    _row(
        "CR314",
        r"cannot enter context: <_contextvars\.Context object at \w+> is already entered",
        "A compiled backward began inside another one's, in the context that the other was in.",
    ),
    _row(
        "CR317",
        r"_DeadlockError: deadlock detected by _ModuleLock\('torch\._"
        r"|cannot import name '\w+' from partially initialized module 'torch\._"
        r"|partially initialized module 'torch\._[\w.]+' has no attribute",
        "Two threads imported this part of torch at once: dynamo and inductor are imported where "
        "they are first used.",
        "observed",
    ),
    _row(
        "CR306",
        r"Cannot clear callbacks while \d+ are pending",
        "`torch._dynamo.reset()` was called while another thread was inside a backward compile.",
        "observed",
    ),
    _row(
        "CR306",
        r"^AssertionError",
        "`torch._dynamo.reset()` was called while another thread was inside a backward compile.",
        "inferred",
        r"torch/_dynamo/callback\.py clear$",
    ),
    _row(
        "CR315",
        r"(?:InternalTorchDynamoError|RuntimeError): .{0,400}?"
        r"(?:mutated|changed size|changed) during iteration",
        "A container changed while dynamo read it.",
        "inferred",
        r"torch/_dynamo/",
    ),
    _row(
        "CR316",
        r"compiled_autograd\._enable\(\) requires no threads in backwards\(\)",
        "Compiled autograd was switched on while another thread was inside a backward.",
        "observed",
    ),
    _row(
        "CR311",
        r"'NoneType' object (?:is not a mapping|is not iterable|has no attribute)",
        "Two threads autotuned the same kernel at once: the autotuner keeps a call's arguments on "
        "itself and clears them after the first.",
        "inferred",
        r"triton/runtime/autotuner\.py",
    ),
    _row(
        "CR501",
        r"^AssertionError",
        "CUDA-graph trees keep their state for each thread, and this one had none.",
        "observed",
        r"torch/_inductor/cudagraph_trees\.py get_obj$",
    ),
    _row(
        "CR503",
        r"cudaErrorStreamCaptureUnsupported|operation not permitted when stream is capturing"
        r"|operation would make the legacy stream depend on a capturing",
        "A CUDA call came while a stream was being captured, from whichever thread.",
    ),
    _row(
        "CR502",
        r"terminate called after throwing an instance of 'c10::(?:Error|\w*CUDAError\w*)'",
        "An exception of C++ ended the process in a thread that could not hand it on, as happens "
        'where CUDA graphs (`mode="reduce-overhead"`) run in several threads.',
    ),
    _row(
        "CR601",
        r"Pointer argument (?:\(at \d+\) )?cannot be accessed from Triton"
        r"|Triton Error \[(?:CUDA|HIP)\]: invalid device context",
        "The thread's current device was not that of the tensors: each thread begins with device "
        "0. A tensor on the CPU gives the same message.",
    ),
    _row(
        "CR403",
        r"FailOnRecompileLimitHit(?::|$)|torch\._dynamo hit config\."
        r"(?:accumulated_)?(?:recompile|cache_size)_limit",
        "The function is marked to compile no more: calls that no entry fits run eager, or raise "
        "under `fullgraph=True`, in every thread.",
        "observed",
    ),
    _row(
        "CR312",
        r"Detected recompile when torch\.compile stance is",
        "The stance is one for the process: if another thread than this one set it, it leaked.",
    ),
    _row(
        "CR401",
        r"flex_attention called without torch\.compile\(\)",
        "Attention ran dense, with the full matrix of scores. Torch says so once for the process, "
        "so how often it did is not known.",
        "observed",
    ),
    _row(
        "CR404",
        r"CheckpointError: .{0,200}?(?:A different number of tensors was saved"
        r"|Recomputed values for the following tensors have different metadata)",
        "The recomputation took another path than its forward: one of them ran compiled and the "
        "other eager, or as another variant.",
        "inferred",
        r"/_dynamo/|/_aot_autograd/| compile_wrapper$",
    ),
)
"""Every row; a row whose cause does not exist is passed over."""

LINES = re.compile("|".join(f"(?:{m.pattern.pattern})" for m in MESSAGES if m.frame is None))
"""What a line holds that says something without a traceback."""

_INNERMOST = 8


@dataclass(frozen=True)
class _Hit:
    message: Message
    tid: int
    seq: int
    text: str
    error: ErrorSeen | None


def find(timeline: Timeline, code: str, earlier: Sequence[Found]) -> list[Found]:
    """The finding of one cause by messages alone, if there is one.

    Args:
        timeline: made from texts.
        code: the cause's.
        earlier: the findings made by then, whose errors are accounted for.
    """
    rows = [message for message in MESSAGES if message.code == code]
    if not rows:
        return []
    known = explained(timeline, earlier)
    hits = [
        *_errors(rows, (error for error in timeline.errors if error.seq not in known)),
        *_lines(rows, timeline.said),
    ]
    return [_finding(timeline, code, hits)] if hits else []


def _errors(rows: Iterable[Message], errors: Iterable[ErrorSeen]) -> list[_Hit]:
    return [
        _Hit(row, error.tid, error.seq, short(error), error)
        for error in errors
        if (row := next((r for r in rows if any(_says(r, link) for link in error.chain)), None))
    ]


def _says(row: Message, link: ErrorLink) -> bool:
    if row.pattern.search(f"{link.type}: {link.message}") is None:
        return False
    if row.frame is None:
        return True
    inner = link.frames if row.code == "CR404" else link.frames[-_INNERMOST:]
    last = link.frames[-1:] if row.frame.pattern.endswith("$") and row.code != "CR404" else inner
    return any(row.frame.search(f"{frame.file} {frame.function}") for frame in last)


def _lines(rows: Sequence[Message], said: Iterable[SaidSeen]) -> list[_Hit]:
    return [
        _Hit(row, line.tid, line.seq, quoted(_cut(line.text)), None)
        for line in said
        if (row := next((r for r in rows if r.frame is None and r.pattern.search(line.text)), None))
    ]


def _cut(text: str, limit: int = 200) -> str:
    text = " ".join(text.replace("`", "'").split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def _finding(timeline: Timeline, code: str, hits: Sequence[_Hit]) -> Found:
    tids = list(dict.fromkeys(hit.tid for hit in hits))
    seqs = frozenset(hit.seq for hit in hits)
    first = hits[0]
    statements = [
        Statement(
            f"{words.begin(_who(timeline, hit))} {_verb(hit)} {hit.text}.", "observed", (hit.seq,)
        )
        for hit in hits[:_INNERMOST]
    ]
    if len(hits) > _INNERMOST:
        more = words.count(len(hits) - _INNERMOST, "more message")
        statements.append(Statement(f"{more} of the kind.", "observed", words.seqs(seqs)))
    for message in dict.fromkeys(hit.message for hit in hits):
        own = words.seqs(hit.seq for hit in hits if hit.message is message)
        statements.append(Statement(message.tells, message.sure, own))
    tells = first.message.tells.split(". ")[0].rstrip(".")
    return Found(
        code=code,
        statements=tuple(statements),
        headline=(
            f"{words.begin(_who(timeline, first))} {_verb(first)} {first.text}: "
            f"{tells[:1].lower() if not tells.startswith(('`', 'CUDA', 'FX')) else tells[:1]}"
            f"{tells[1:]}."
        ),
        explains=seqs,
        because=frozenset(
            seq
            for hit in hits
            if hit.error is not None
            for compile_ in timeline.compiling_at(hit.error.t, other_than=hit.tid)
            for seq in compile_.seqs
        ),
        threads=words.refs(timeline, tids),
        stacks=_stacks(timeline, hits),
    )


def _who(timeline: Timeline, hit: _Hit) -> str:
    return f"`{timeline.name(hit.tid)}`" if hit.error is not None else "the text"


def _verb(hit: _Hit) -> str:
    return "raised" if hit.error is not None else "says"


def _stacks(timeline: Timeline, hits: Sequence[_Hit]) -> tuple[Stack, ...]:
    errors = [hit.error for hit in hits if hit.error is not None and hit.error.error.frames]
    return tuple(
        words.stack(timeline, e.tid, "raised the error", tuple(reversed(e.error.frames)), e.seq)
        for e in errors[:2]
    )
