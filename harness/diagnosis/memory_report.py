"""The part of a report that tells of memory. All sizes are bytes."""

from harness.statements import ThreadRef, Value


class DeviceMemory(Value, frozen=True):
    """The most that was in use on one device over the run, in bytes.

    On ``cpu`` that is the process's resident set. ``total``: the device's memory; 0 if it is not
    known. ``cap``: the bound that ``--memory-cap`` set, and ``capped_by`` what sets it.
    """

    device: str
    peak_allocated: int = 0
    peak_reserved: int = 0
    total: int = 0
    cap: int | None = None
    capped_by: str = ""
    evidence: int = 0


class PhaseMemory(Value, frozen=True):
    """The most that was in use on a device during a phase of the workload, in bytes.

    ``before``: in use when it began. ``exact``: otherwise ``peak`` is the most that was seen.
    """

    name: str
    device: str
    before: int
    peak: int
    exact: bool
    evidence: int = 0


class FailedRequest(Value, frozen=True):
    """A request for memory that failed; sizes in bytes, None: not known.

    ``free``: what the device had left for everybody. ``doing``: what it was for, and ``sizes`` its
    B, H, Q and KV. ``survived``: the program handled the error, as far as that was seen.
    """

    thread: ThreadRef
    device: str
    asked: int | None = None
    free: int | None = None
    total: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    cap: int | None = None
    doing: str = ""
    sizes: tuple[int, ...] = ()
    count: int = 1
    t_s: float = 0.0
    survived: bool = False
    explained_by: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()


class Memory(Value, frozen=True):
    """One process's memory. ``left_out``: failed requests that are not listed."""

    pid: int
    devices: tuple[DeviceMemory, ...] = ()
    phases: tuple[PhaseMemory, ...] = ()
    requests: tuple[FailedRequest, ...] = ()
    left_out: int = 0
