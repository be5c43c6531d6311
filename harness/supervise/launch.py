"""What is started: the command, the environment that makes it watched, where its output goes."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import __version__
from harness.child import boot
from harness.child.settings import VARIABLE, Settings
from harness.events.files import CACHE, TORCH_TRACE

SITE = Path(boot.__file__).with_name("site")


def traces_elsewhere() -> str:
    """The folder that the user's TORCH_TRACE names, which stays; empty if there is none."""
    return os.environ.get("TORCH_TRACE", "")


@dataclass(frozen=True)
class WatchSettings:
    """What of the watch can be chosen, apart from where it goes and how long it lasts.

    ``schedule``: ``harness.schedule.plan.Schedule.for_child``; None: threads run as they like.
    ``torch_trace``: have torch write its structured logs, too.
    ``ask``: each thread asks the cache entries before each call (``harness.child.asking``).
    """

    compile_detail: bool = True
    disabled_probes: tuple[str, ...] = ()
    max_events_mb: int = 256
    memory_cap: int | None = None
    keep_cache: bool = False
    torch_trace: bool = False
    schedule: dict[str, Any] | None = None
    ask: bool = False


@dataclass(frozen=True)
class Launch:
    """A program ready to be started.

    Attributes:
        command: program and arguments.
        folder: the run folder.
        watch: settings of the watch.
        timeout_s: seconds after which the program is ended.
        log: file that takes the program's stdout and stderr; None: it has ours.
    """

    command: tuple[str, ...]
    folder: Path
    watch: WatchSettings
    timeout_s: float
    log: Path | None = None

    def settings(self, deadline: float) -> Settings:
        """Settings for the child; ``deadline`` is a value of ``time.monotonic()``."""
        return Settings(
            folder=str(self.folder),
            harness=__version__,
            compile_detail=self.watch.compile_detail,
            disabled_probes=self.watch.disabled_probes,
            max_events_mb=self.watch.max_events_mb,
            memory_cap=self.watch.memory_cap,
            schedule=self.watch.schedule,
            ask=self.watch.ask,
            cache_state="kept" if self.watch.keep_cache else "cold",
            deadline=deadline,
        )

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the child's environment: ours, the watch, and a compile cache of its own.

        With inductor's caches of an earlier run nothing is traced or compiled anew, and with that
        the races in doing so are gone.
        """
        environment = dict(os.environ)
        environment[VARIABLE] = settings.dumps()
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{before}" if before else str(SITE)
        if not self.watch.keep_cache:
            cache = self.folder / CACHE
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
            environment["TRITON_CACHE_DIR"] = str(cache / "triton")
        if self.watch.torch_trace and not traces_elsewhere():
            environment["TORCH_TRACE"] = str(self.folder / TORCH_TRACE)
        if self.log is not None:  # what a killed program had printed is then in the log
            environment["PYTHONUNBUFFERED"] = "1"
        return environment

    def make_trace_folder(self) -> None:
        """Make the folder of torch's logs, for its owner only; torch would make it for everybody.

        A disk that takes no folder is torch's to tell of.
        """
        if self.watch.torch_trace and not traces_elsewhere():
            with contextlib.suppress(OSError):
                (self.folder / TORCH_TRACE).mkdir(mode=0o700)

    def remove_empty_trace_folder(self) -> None:
        """Remove the folder again if torch has written nothing."""
        with contextlib.suppress(OSError):
            (self.folder / TORCH_TRACE).rmdir()
