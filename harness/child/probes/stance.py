"""``torch.compiler.set_stance``, whose stance holds for all threads of the process."""

import functools
from collections.abc import Callable
from typing import Any

from .. import following
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings


class StanceProbe:
    """Wraps the one function that sets the stance."""

    name = "stance"
    modules: tuple[str, ...] = (symbols.SET_STANCE.module, symbols.SET_STANCE_BY_NAME.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks a symbol; nothing is wrapped then."""
        original = symbols.SET_STANCE.get()
        by_name = symbols.SET_STANCE_BY_NAME.get()
        watched = _wrap(original, recorder, following.of(recorder))
        symbols.SET_STANCE.replace(watched)
        if by_name is original:
            symbols.SET_STANCE_BY_NAME.replace(watched)


def _wrap(
    original: Callable[[Any], Any], recorder: Recorder, follower: following.Follower
) -> Callable[[Any], Any]:
    @functools.wraps(original)  # dynamo is told by an attribute not to trace it
    def _set_stance(stance: Any) -> Any:
        # First, so that whoever sees the stance knows whose it is.
        follower.setting_stance(stance)
        prior = original(stance)
        try:
            _record(recorder, stance)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1
        return prior

    return _set_stance


def _record(recorder: Recorder, stance: Any) -> None:
    backend = stance.backend
    data = {
        "stance": stance.stance,
        "skip_guards": stance.skip_guard_eval_unsafe,
        "backend": getattr(backend, "__name__", str(backend)) if backend is not None else "",
    }
    kind = (data["stance"], data["skip_guards"], data["backend"])
    if recorder.emit_counted("stance", kind, data, stack=True):
        recorder.look_at_all_threads()


PROBE = StanceProbe()
