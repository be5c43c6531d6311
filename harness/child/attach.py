"""Installs the probes, each when the modules that it patches were imported."""

import importlib
import sys

from .imports import ImportHooks
from .probes import Probe, Unavailable
from .recorder import Recorder
from .settings import Settings

#: Probe modules in ``harness.child.probes``, in the order of installation; also the probes' names.
PROBES = (
    "threads",
    "futures",
    "workload",
    "wrapper",
    "guards",
    "eager",
    "stance",
    "compiles",
    "lock",
    "reset",
    "fx",
    "backward",
    "cuda_graphs",
    "forks",
    "autotune",
    "attention",
    "block_mask",
    "is_compiling",
    "memory",
    "invariants",
)


class Attachment:
    """The probes of this process and where each of them stands."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        self._recorder = recorder
        self._settings = settings
        self._hooks = ImportHooks()
        self._waiting: dict[str, Probe] = {}

    def attach(self) -> None:
        """Install every probe that is not disabled, now or when its modules arrive."""
        self._hooks.install()
        for name in PROBES:
            if name in self._settings.disabled_probes:
                self.report(name, "disabled")
                continue
            try:
                probe: Probe = importlib.import_module(f".probes.{name}", __package__).PROBE
            except Exception as error:  # noqa: BLE001 - one broken probe must not stop the others
                self.report(name, "failed", _last_line(error))
                continue
            self._waiting[name] = probe
            self._hooks.when_all_imported(probe.modules, lambda probe=probe: self._install(probe))  # type: ignore[misc]

    def waiting(self) -> list[str]:
        """The probes that have had nothing to patch by now."""
        return list(self._waiting)

    def stop_waiting(self) -> None:
        """Install no more probes."""
        self._hooks.remove()

    def report_idle(self) -> None:
        """At the program's end, record the probes that never had anything to patch."""
        for probe in list(self._waiting.values()):
            if probe.modules and all(name in sys.modules for name in probe.modules):
                reason = "its module was imported past the import hook"
                self.report(probe.name, "missing", reason)
            else:
                self.report(probe.name, "idle")

    def report(self, name: str, state: str, reason: str = "") -> None:
        """Record a probe's state."""
        self._recorder.emit("probe", {"name": name, "state": state, "reason": reason})

    def _install(self, probe: Probe) -> None:
        self._waiting.pop(probe.name, None)
        try:
            probe.install(self._recorder, self._settings)
        except Unavailable as error:
            self.report(probe.name, error.state, str(error))
        except Exception as error:  # noqa: BLE001 - the program goes on unwatched at this point
            self.report(probe.name, "failed", _last_line(error))
        else:
            self.report(probe.name, "live")


def _last_line(error: BaseException) -> str:
    import traceback  # not needed by a healthy child

    # Exceptions of ours are few: the place in our code is worth more than the whole traceback.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"{words} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
