"""The variants that dynamo keeps of a code object, and the text of their guards."""

import functools
import hashlib
import json
import re
import time
import weakref
from types import CodeType
from typing import Any

from . import nesting, torch_code
from . import torch_symbols as symbols
from .recorder import Recorder

_MAX_LINES = 40
_MAX_LINE = 300
_MAX_ENTRIES = 32
_MAX_SECONDS = 2.0
# The tree is drawn with bars; a guard's line ends in a comment that quotes the user's source.
_GUARD = re.compile(r"^[| ]*\+- ([A-Z][A-Z_]+): (.*)$")
_GLOBAL_STATE = "___check_global_state() against "
# Dynamo asks every tensor for its dynamic-dimension marks: five lines that all say "has none".
_NOISE = re.compile(r"^hasattr\(.*, '_dynamo_\w+'\) == False")
# What differs between two compiles of the very same thing: addresses, and names that dynamo numbers
# (``__builtins_dict___4``, ``..._c2`` after the compile that made them). Ids of guarded objects
# stay: two variants that want two different objects are not the same thing compiled twice.
# Each is a mark and what follows it: a mark is found far faster than a pattern is.
_NUMBERED = (
    ("0x", re.compile(r"[0-9a-f]+")),
    ("___", re.compile(r"\d+\b")),
    ("_c", re.compile(r"\d+(?=['\"])")),
)

# Of a code object that callables share: which callable a compile was for.
_shared: dict[tuple[int, str], int] = {}
_described: weakref.WeakKeyDictionary[object, dict[str, Any]] = weakref.WeakKeyDictionary()
# When ``_shared`` has grown to this, what dynamo has dropped meanwhile is dropped here.
_MIN_SHARED = 1024
_prune_at = _MIN_SHARED
_compiled: dict[int, tuple[weakref.ref[CodeType], dict[str, Any]]] = {}


def describe_entry(guard_manager: object, compile_id: object) -> dict[str, Any]:
    """Describe one variant as ``harness.events.values.CacheEntry``; about 2 ms.

    ``digest`` is equal for variants whose guards say the same, as those of a stampede do.
    """
    try:
        known = _described.get(guard_manager)
    except TypeError:  # it can be referred to strongly only
        return _describe(guard_manager, compile_id)
    if known is None or known["compile_id"] != str(compile_id):
        known = _described[guard_manager] = _describe(guard_manager, compile_id)
    return known


def _describe(guard_manager: object, compile_id: object) -> dict[str, Any]:
    text = str(guard_manager)
    # A tensor's or a dict's guards come in no fixed order.
    normal = "\n".join(sorted(_without_numbers(text).splitlines()))
    return {
        "compile_id": str(compile_id),
        "digest": hashlib.sha1(normal.encode(), usedforsecurity=False).hexdigest(),
        "global_state": _global_state(text),
        "guards": _guard_lines(text),
    }


def _without_numbers(text: str) -> str:
    for mark, number in _NUMBERED:
        # From the right, since of a longer row of underscores the last three belong to the number.
        text, *pieces = text.rsplit(mark)
        kept = [text]
        for piece in pieces:
            found = number.match(piece)
            kept += (mark, piece) if found is None else (piece[found.end() :],)
        text = "".join(kept)
    return text


def _global_state(text: str) -> dict[str, Any] | None:
    start = text.find(_GLOBAL_STATE)
    if start < 0:
        return None
    state, _ = json.JSONDecoder().raw_decode(text, start + len(_GLOBAL_STATE))
    return state  # type: ignore[no-any-return]


def _guard_lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        guard = _GUARD.match(line)
        if guard is None or _NOISE.match(guard.group(2)):
            continue
        words = guard.group(2).partition("  # ")[0].rstrip()
        lines.append(f"{guard.group(1)}: {words}"[:_MAX_LINE])
        if len(lines) == _MAX_LINES:
            break
    return lines


def remember(code: CodeType, described: dict[str, Any], compile_id: str) -> None:
    """Note that ``compile_id`` is a compile of ``code``, as described by ``codes.describe``."""
    number: int = described["id"]
    if torch_code.is_stand_in(code):
        if len(_shared) >= _prune_at:
            _prune(code)
        _shared[id(code), compile_id] = number
    if number not in _compiled:
        forget = functools.partial(_forget, number)
        _compiled[number] = (weakref.ref(code, forget), described)


def _forget(number: int, _: object) -> None:
    _compiled.pop(number, None)


def _prune(code: CodeType) -> None:
    """Forget the compiles whose entries are gone: a program may compile ever new callables."""
    global _prune_at  # noqa: PLW0603
    alive = {(id(code), str(entry.compile_id)) for entry in symbols.CACHE_ENTRIES.get()(code)}
    for key in list(_shared):
        if key not in alive:
            _shared.pop(key, None)
    _prune_at = max(_MIN_SHARED, 2 * len(_shared))


def entries_of(code: CodeType, described: dict[str, Any]) -> list[Any]:
    """Dynamo's cache entries of what ``described`` names, newest first."""
    entries: list[Any] = symbols.CACHE_ENTRIES.get()(code)
    if not torch_code.is_stand_in(code):
        return entries
    return [e for e in entries if is_compile_of(code, described, str(e.compile_id))]


def of_other_backends(entries: list[Any], backend: object) -> list[str] | None:
    """Ids of the compiles that made ``entries`` for another backend; None if it cannot be told.

    Dynamo compares them as ``==`` does (``backend_match`` in torch/csrc/dynamo/extra_state.cpp).
    """
    try:
        backend = symbols.innermost_backend(backend) or backend
        return [str(entry.compile_id) for entry in entries if entry.backend != backend]
    except Exception:  # noqa: BLE001 - a backend is the program's, and so is how it is compared
        return None


def is_compile_of(code: CodeType, described: dict[str, Any], compile_id: str) -> bool:
    """Whether ``compile_id`` was a compile of what ``described`` names."""
    number: int = described["id"]
    return _shared.get((id(code), compile_id), number) == number


def record_at_exit(recorder: Recorder) -> None:
    """Arrange for ``record_all`` at the program's end, while dynamo still has its caches.

    Dynamo drops an entry when a guarded object dies, by ``weakref.finalize``.
    """
    recorder.at_exit(functools.partial(record_all, recorder))


def record_all(recorder: Recorder) -> None:
    """Write one ``caches`` event for each code object that was compiled and is still there.

    At most 32 entries of each, newest first, and two seconds in all; what is left out is counted.
    Nothing is read while another thread compiles, since that changes the lists of entries.
    """
    if nesting.others(recorder.compiling, recorder.local.tid):
        return
    end = time.monotonic() + _MAX_SECONDS
    for reference, described in list(_compiled.values()):
        code = reference()
        if code is None:
            continue
        try:
            entries = entries_of(code, described)
            told = _describe_until(end, entries[:_MAX_ENTRIES])
        except Exception:  # noqa: BLE001 - an entry dropped by another thread meanwhile
            recorder.lost += 1
            continue
        data: dict[str, Any] = {"code": described, "entries": told}
        if len(told) < len(entries):
            data["left_out"] = len(entries) - len(told)
        recorder.emit("caches", data)


def _describe_until(end: float, entries: list[Any]) -> list[dict[str, Any]]:
    """Describe entries that come newest first; they go oldest first."""
    told: list[dict[str, Any]] = []
    for entry in entries:
        if time.monotonic() >= end:
            break
        told.append(describe_entry(entry.guard_manager, entry.compile_id))
    return told[::-1]
