"""The cache entries that were there when a watch began: what had been compiled before."""

import time
from collections.abc import Iterator
from types import CodeType
from typing import Any

from .. import caches, codes, context, torch_code
from .. import torch_symbols as symbols
from ..probes import Unavailable
from ..recorder import Recorder

_MAX_CODES = 256
_MAX_SECONDS = 2.0
#: Fields of the GLOBAL_STATE guard under the names that a context has for them.
_STATE = {"grad_mode": "grad_mode", "num_threads": "num_threads"}


def record_entries(recorder: Recorder) -> int:
    """Write a ``dynamo_compile`` for each entry that is there; return how many there are.

    Oldest first, at most two seconds long. Who compiled them, and for which inputs, nothing tells.
    """
    number = 0
    end = time.monotonic() + _MAX_SECONDS
    for code in _compiled_codes():
        entries = symbols.CACHE_ENTRIES.get()(code)
        if not entries or torch_code.is_internal(code) or torch_code.is_stand_in(code):
            continue
        described = codes.describe(code)
        for entry in reversed(entries):
            number += 1
            if time.monotonic() < end:
                try:
                    _record(recorder, code, described, entry)
                except Exception:  # noqa: BLE001 - an entry dropped by another thread meanwhile
                    recorder.lost += 1
    return number


def _record(recorder: Recorder, code: CodeType, described: dict[str, Any], entry: Any) -> None:
    variant = caches.describe_entry(entry.guard_manager, entry.compile_id)
    data = {
        "code": described,
        "ok": True,
        "entry": variant,
        "context": _context_of(variant["global_state"]),
        "before": True,
    }
    compile_id = str(entry.compile_id)
    recorder.emit("dynamo_compile", data, edge="exit", compile_id=compile_id)
    caches.remember(code, described, compile_id)


def _context_of(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """The context that an entry asks for, as far as its guards tell; None: they tell too little.

    What they do not tell is taken to be as it is now, so that it makes no difference.
    """
    if state is None:
        return None
    now, described = context.global_state(), context.describe()
    numeric = described["numeric_flags"]
    for name, value in state.items():
        if name in _STATE:
            described[_STATE[name]] = value
        elif name in numeric:
            numeric[name] = value
        elif name == "deterministic_algorithms":
            described["deterministic"] = bool(value)
        elif value != now.get(name):
            return None  # autocast and default dtype come as numbers of torch's own
    return described


def _compiled_codes() -> Iterator[CodeType]:
    try:
        references = symbols.COMPILED_CODES.get()
    except Unavailable:  # dynamo has not been imported, so nothing was compiled
        return
    seen: set[int] = set()
    for reference in list(references)[-_MAX_CODES * 16 :]:
        code = reference()
        if code is not None and id(code) not in seen and len(seen) < _MAX_CODES:
            seen.add(id(code))
            yield code
