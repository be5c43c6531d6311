"""The gate's outcome: one object, from which ``gate.json``, JUnit and all texts are made."""

import msgspec

from harness.exits import ExitCode
from harness.gating.compare import FAILURES, Judged

GATE_SCHEMA = 1

_VERDICTS = {
    ExitCode.CLEAN: "green",
    ExitCode.FOUND: "red",
    ExitCode.INCOMPLETE: "incomplete",
    ExitCode.NOTHING_RAN: "nothing ran",
    ExitCode.FAILED: "failed",
}


class LeftOutEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the suite for another kind of machine."""

    name: str
    because: str


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """``gate.json``. ``device``: of the entries that have GPUs; ``seconds``: of the whole gate."""

    verdict: str
    exit_code: int
    headline: str
    schema: int = GATE_SCHEMA
    torch: str
    python: str
    device: str
    gpus: int
    harness: str
    commit: str = ""
    suite: str = ""
    baseline: str = ""
    started: str = ""
    seconds: float = 0.0
    command: str = ""
    faults: tuple[str, ...] = ()
    judged: tuple[Judged, ...] = ()
    left_out: tuple[LeftOutEntry, ...] = ()

    @property
    def bad(self) -> list[Judged]:
        """What keeps the gate from being green: failures first, then what was not decided."""
        failures = [one for one in self.judged if one.status in FAILURES]
        rest = [one for one in self.judged if one.status not in {*FAILURES, "same"}]
        return failures + rest


def verdict_of(code: ExitCode) -> str:
    """``green``, ``red``, ``incomplete``, ``nothing ran`` or ``failed``."""
    return _VERDICTS[code]


def headline_of(code: ExitCode, judged: tuple[Judged, ...], faults: tuple[str, ...]) -> str:
    """One sentence: what broke, or that nothing did."""
    kinds = [one.status for one in judged]
    counted = ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in (*FAILURES, "incomplete", "not run", "same")
        if kind in kinds
    )  # fmt: skip
    sentence = f"{verdict_of(code)}: {counted or 'nothing was compared'}"
    return f"{sentence}; {'; '.join(faults)}" if faults else sentence


def name_of(one: Judged) -> str:
    """What a result is called: its test, or its scenario; with its run and schedule if any."""
    key = one.measured.key
    name = key.test or key.scenario
    if key.schedule:
        name += f" under {key.schedule}"
    return f"{name} (run {one.measured.run})" if one.measured.run > 1 else name


def dumps(gate: Gate) -> str:
    """``gate.json``."""
    return msgspec.json.format(msgspec.json.encode(gate), indent=1).decode() + "\n"


def loads(text: bytes) -> Gate:
    """Read ``gate.json``. Raises msgspec.ValidationError if it is none."""
    return msgspec.json.decode(text, type=Gate)
