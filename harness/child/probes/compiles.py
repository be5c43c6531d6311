"""Dynamo's compiles: each one, with what came in, why, and what came out."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .. import caches, codes, context, following, gpus, lookups, nesting, owners, torch_code, unseen
from .. import torch_symbols as symbols
from ..detail import Detail
from ..errors import in_words
from ..recorder import Recorder
from ..schedule.inside import hold_inside_compiles
from ..settings import Settings
from .lock import CONTEXT

_MAX_ERROR = 600
_MAX_REASONS = 16
_MAX_REASON = 1000


class CompilesProbe:
    """Wraps ``torch._dynamo.convert_frame._compile`` and listens to torch's trace log."""

    name = "compiles"
    modules: tuple[str, ...] = (symbols.COMPILE.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Wrap. Raises Unavailable if this torch lacks a symbol."""
        original = symbols.COMPILE.get()
        symbols.CACHE_ENTRIES.get()
        unseen.hide_own_frames()
        detail = Detail(recorder) if settings.compile_detail else None
        if detail is not None:
            detail.attach()
        symbols.COMPILE.replace(_wrap(original, _Compiles(recorder, detail), recorder))
        if recorder.schedule is not None:
            hold_inside_compiles(recorder)
        if detail is not None:
            recorder.at_end.append(detail.record)
        caches.record_at_exit(recorder)
        recorder.at_end.append(lambda: gpus.record_once(recorder))


def _wrap(
    original: Callable[..., Any], compiles: "_Compiles", recorder: Recorder
) -> Callable[..., Any]:
    @functools.wraps(original)
    def _compile(*args: Any, **kwargs: Any) -> Any:
        if "skip" in kwargs:  # how many frames torch leaves out of the stacks that it logs
            kwargs["skip"] += 1
        begun = compiles.begin(args, kwargs)
        recorder.reach("dynamo_compile", "enter")
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            recorder.reach("dynamo_compile", "exit")
            compiles.end(begun, None, error)
            raise
        recorder.reach("dynamo_compile", "exit")
        compiles.end(begun, result, None)
        return result

    return _compile


@dataclass
class _Begun:
    """A compile in progress."""

    compile_id: str
    code: CodeType | None = None
    described: dict[str, Any] | None = None
    reasons: list[str] = field(default_factory=list)
    written: bool = False
    other_backends: list[str] | None = None
    fullgraph: bool = False
    called_ns: int = 0


class _Compiles:
    def __init__(self, recorder: Recorder, detail: Detail | None) -> None:
        self._recorder = recorder
        self._detail = detail
        self._follower = following.of(recorder)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun:
        """Record the start of a compile. Never raises."""
        recorder, local = self._recorder, self._recorder.local
        begun = _Begun(str(kwargs.get("compile_id")))
        if self._detail is not None:
            self._detail.compile_begins(begun.reasons)
        local.compiles.append(begun.compile_id)
        nesting.enter(recorder.compiling, local.tid)
        try:
            self._record_begin(begun, args, kwargs)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1
        recorder.look_at_all_threads()
        return begun

    def end(self, begun: _Begun, result: Any, error: BaseException | None) -> None:
        """Record the end of a compile. Never raises."""
        recorder, local = self._recorder, self._recorder.local
        try:
            self._record_end(begun, result, error)
            self._record_outcome(begun, result, error)
            gpus.record_once(recorder)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1
        if local.compiles:
            local.compiles.pop()
        nesting.leave(recorder.compiling, local.tid)
        recorder.look_at_all_threads()
        if self._detail is not None:
            self._detail.compile_ends()

    def _record_begin(self, begun: _Begun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        code = args[0] if args else kwargs["code"]
        variables = args[2] if len(args) > 2 else kwargs["locals"]
        target = None
        if torch_code.is_stand_in(code) and "fn" in variables:
            target = torch_code.stand_in_target(variables["fn"])
        begun.code, begun.described = code, codes.describe(code, target)
        begun.fullgraph = bool(args[6] if len(args) > 6 else kwargs["one_graph"])
        begun.called_ns = self._follower.compiling(begun.described)
        caches.remember(code, begun.described, begun.compile_id)
        entries = caches.entries_of(code, begun.described)
        backend = args[5] if len(args) > 5 else kwargs["compiler_fn"]
        begun.other_backends = caches.of_other_backends(entries, backend)
        data = {
            "code": begun.described,
            "context": self._recorder.local.scratch.pop(CONTEXT, None) or context.describe(),
            "inputs": context.describe_inputs(variables),
            "entries": len(entries),
            "limit": symbols.RECOMPILE_LIMIT.get(),
            "owner": owners.owner_of(code, variables),
            "dynamic": torch_code.asked_dynamic(sys._getframe()),  # noqa: SLF001
        }
        seq = self._recorder.emit(
            "dynamo_compile", data, edge="enter", compile_id=begun.compile_id, stack=True
        )
        begun.written = seq > 0

    def _record_end(self, begun: _Begun, result: Any, error: BaseException | None) -> None:
        if begun.code is None or begun.described is None:
            return
        guarded = getattr(result, "guarded_code", None)
        # One failure among thousands of compiles is worth its line, though it has no beginning.
        failed = {"code": begun.described, "error": "failed"}
        if not begun.written and (
            guarded is not None or not self._recorder.admits("dynamo_compile", failed)
        ):
            return
        data: dict[str, Any] = {
            "code": begun.described,
            "ok": guarded is not None,
            "reasons": self._own_reasons(begun),
            "other_backends": begun.other_backends,
        }
        if guarded is not None:
            data["entry"] = caches.describe_entry(guarded.guard_manager, begun.compile_id)
            waiting = self._waiting(begun.code, begun.described, begun.compile_id)
            data |= {"waiting": waiting} if waiting else {}
        elif error is not None:
            data["error"] = in_words(error)
            data["limit_hit"] = torch_code.is_limit_hit(error)
        else:
            data["error"] = str(getattr(result, "skip_reason", None) or "frame skipped")[
                :_MAX_ERROR
            ]
        self._recorder.emit("dynamo_compile", data, edge="exit", compile_id=begun.compile_id)

    def _waiting(self, code: CodeType, described: dict[str, Any], compile_id: str) -> list[int]:
        """Which calls may meet the entry that the calling thread is about to add."""
        found = lookups.of(self._recorder)
        if found is None:
            return []
        found.compiled(code, described, compile_id)
        return found.waiting(described)

    def _record_outcome(self, begun: _Begun, result: Any, error: BaseException | None) -> None:
        if begun.described is not None:
            left = following.left_to_python(result, error, fullgraph=begun.fullgraph)
            raised = error is not None and left is None
            if not raised:
                self._follower.compiled(begun.described, begun.called_ns, left)

    def _own_reasons(self, begun: _Begun) -> list[str]:
        # A reason begins with the id of the compile whose entry did not fit: "0/1: GLOBAL_STATE".
        assert begun.code is not None
        assert begun.described is not None
        return [
            reason[:_MAX_REASON]
            for reason in begun.reasons
            if caches.is_compile_of(begun.code, begun.described, reason.partition(":")[0])
        ][:_MAX_REASONS]


PROBE = CompilesProbe()
