"""How the parent tells the child what to do: one JSON object in one environment variable."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "COMPILE_RACE_WATCH"


@dataclass(frozen=True)
class Settings:
    """Settings of one watched process.

    Attributes:
        folder: the run folder, which exists.
        harness: version of the harness, for the header.
        compile_detail: attach to torch's trace log for compile ids, reasons and metrics.
        disabled_probes: names of probes to leave out.
        max_events_mb: bound on steady events' segments, in MiB.
        cache_state: ``cold`` if the parent gave a fresh compile cache, else ``kept``.
        deadline: ``time.monotonic()`` (one clock for all processes) at which the parent will end
            the program; None if it will not.
        memory_cap: bound on the program's memory in bytes, of each GPU or, where none is visible,
            of its data segment; None: none.
        schedule: what ``schedule.make`` takes, for the run's first process; None: threads run as
            they like.
        ask: ask the cache entries before each call of compiled code (see ``asking``).
        in_process: the watch begins in a program that runs already, and is taken out again.
    """

    folder: str
    harness: str
    compile_detail: bool = True
    disabled_probes: tuple[str, ...] = ()
    max_events_mb: int = 256
    cache_state: str = "cold"
    deadline: float | None = None
    memory_cap: int | None = None
    schedule: dict[str, Any] | None = None
    ask: bool = False
    in_process: bool = False

    def dumps(self) -> str:
        """Text for the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> "Settings | None":
        """Settings of this process, or None when it is not watched."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        fields = json.loads(text)
        fields["disabled_probes"] = tuple(fields["disabled_probes"])
        return cls(**fields)
