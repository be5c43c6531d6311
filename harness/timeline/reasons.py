"""What a guard's failure says: torch's own words for why an entry rejected a call, classified.

The wording is that of torch 2.9 to 2.15. A recompile's reasons come one per cache entry, each
behind the compile id of the entry that rejected the call: ``0/1: GLOBAL_STATE changed: grad_mode ``
(``torch/_dynamo/guards.py``, ``get_guard_fail_reason_helper``); several reasons of one entry are
joined by ``; `` under verbose logging.
"""

import enum
import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from harness.timeline.sharing import cut


class Guard(enum.Enum):
    """What a guard guards."""

    GRAD_MODE = "grad_mode"
    INFERENCE_MODE = "inference_mode"
    AUTOCAST = "autocast"
    TORCH_FUNCTION_MODE = "torch-function modes"
    NUM_THREADS = "num_threads"
    NUMERIC = "numeric flags"
    DISPATCH_KEYS = "dispatch keys"
    SIZE = "size"
    CAPTURED = "captured tensor"
    DEVICE = "device"
    LAYOUT = "dtype or layout"
    REQUIRES_GRAD = "requires_grad"
    DYNAMIC_MARKING = "dynamic marking"
    VALUE = "value"
    BACKEND = "backend"
    UNEXPECTED = "none (passed when checked again)"


THREAD_STATE = frozenset(
    {
        Guard.GRAD_MODE,
        Guard.INFERENCE_MODE,
        Guard.AUTOCAST,
        Guard.TORCH_FUNCTION_MODE,
        Guard.NUM_THREADS,
        Guard.NUMERIC,
    }
)
"""State that dynamo reads from the calling thread or the process, whatever the inputs are."""

GLOBAL_STATE = frozenset(
    {Guard.GRAD_MODE, Guard.AUTOCAST, Guard.NUM_THREADS, Guard.NUMERIC, Guard.TORCH_FUNCTION_MODE}
)
"""What one GLOBAL_STATE guard compares; when it fails it names every field that differs."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One entry's rejection. ``entry`` is its compile id, where the text has one.

    ``other_backend``: the entry is known to be of another backend than the call's.
    """

    text: str
    entry: str | None
    guards: frozenset[Guard]
    other_backend: bool = False


_ENTRY = re.compile(r"^\s*-?\s*\[?(\d+/\d+(?:_\d+)?)\]?:\s*")
_FIELD = re.compile(r"autocast\([^)]*\)_\w+|\w+")

_WORDING: tuple[tuple[re.Pattern[str], Guard], ...] = (
    (re.compile(r"torch_function_mode_stack"), Guard.TORCH_FUNCTION_MODE),
    (re.compile(r"^Unexpected recompilation"), Guard.UNEXPECTED),
    (re.compile(r"^BACKEND_MATCH"), Guard.BACKEND),
    (re.compile(r"_dynamo_\w*(?:indices|dim_marking|hint)"), Guard.DYNAMIC_MARKING),
    (re.compile(r"device (?:index )?mismatch"), Guard.DEVICE),
    (re.compile(r"__closure__|cell_contents"), Guard.CAPTURED),
    (re.compile(r"dispatch key set mismatch"), Guard.DISPATCH_KEYS),
    (re.compile(r"requires_grad mismatch"), Guard.REQUIRES_GRAD),
    (re.compile(r"dtype mismatch|stride mismatch|is_contiguous|storage_offset"), Guard.LAYOUT),
    (re.compile(r"size mismatch|rank mismatch|\.size\(\)\[|\.stride\(\)\["), Guard.SIZE),
)
"""Wordings of single guards, the first that fits counts: a captured tensor's size is CAPTURED."""


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Reason:
    """Classify one reason, with or without the entry's id in front."""
    body = text.split("\nUser stack trace:", 1)[0]
    match = _ENTRY.match(body)
    entry = match.group(1) if match else None
    if match:
        body = body[match.end() :]
    return Reason(text=text, entry=entry, guards=_guards(body))


def parse_all(
    texts: tuple[str, ...], other_backends: Collection[str] | None = None
) -> tuple[Reason, ...]:
    """Classify a recompile's reasons.

    ``other_backends``: the entries that were made for another backend, by compile id; None: not
    known. Torch 2.11 names the backend for every entry whose guards all pass, since it compares a
    wrapped one (``get_guard_fail_reason_helper``); 2.12 and newer say that of other ones alone.
    """
    reasons = tuple(parse(cut(text)) for text in texts if text.strip())
    if other_backends is None:
        return reasons
    return tuple(_checked(reason, other_backends) for reason in reasons)


def _checked(reason: Reason, other_backends: Collection[str]) -> Reason:
    if Guard.BACKEND not in reason.guards or reason.entry is None:
        return reason
    if reason.entry in other_backends:
        return replace(reason, other_backend=True)
    return replace(reason, guards=frozenset({Guard.UNEXPECTED}))


def _guards(body: str) -> frozenset[Guard]:
    if "GLOBAL_STATE changed" in body:
        fields = _FIELD.findall(body.split("GLOBAL_STATE changed:", 1)[-1])
        return frozenset(_global_state(field) for field in fields) or frozenset({Guard.NUMERIC})
    guard = next((guard for wording, guard in _WORDING if wording.search(body)), Guard.VALUE)
    return frozenset({guard})


def _global_state(field: str) -> Guard:
    if field == "grad_mode":
        return Guard.GRAD_MODE
    if field.startswith("autocast"):
        return Guard.AUTOCAST
    if field.startswith("torch_function"):
        return Guard.TORCH_FUNCTION_MODE
    if field == "num_threads":
        return Guard.NUM_THREADS
    return Guard.NUMERIC
