"""What a command is asked to do: dataclasses that are the command line, the file and the record."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dflash_min.cli import Names, to_argv
from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from dflash_min.resolve import Resolved, resolve
from harness.child.attach import PROBES
from harness.expect import check_expectations
from harness.live import check_stop_on
from harness.schedule.options import ScheduleOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# More GPUs than a host has: what is wrong with none and with these is wrong in itself.
_MANY_GPUS = 64


_TABLES = "[train], [watch] and [schedule]"

NoProbe = Annotated[
    Names,
    tyro.conf.arg(
        help=f"Probes to leave out, of {', '.join(PROBES)}. Verdicts that need one are incomplete."
    ),
]
"""The value of ``--no-probe``."""


def check_timeout(seconds: float) -> None:
    """Refuse a value of ``--timeout`` that is no time to wait. Raises UsageError."""
    if not 0 < seconds <= _LONGEST_S:  # a NaN is in no range
        raise UsageError(
            "--timeout must be a number of seconds above 0 and at most a year "
            f"({_LONGEST_S}), got {seconds:g}"
        )


def check_probes(names: Sequence[str]) -> None:
    """Refuse a value of ``--no-probe`` that names no probe. Raises UsageError."""
    for name in names:
        if name not in PROBES:
            raise UsageError(f"--no-probe: there is no probe {name}; {', '.join(PROBES)}")


# What C takes for a time, in which the program's own dump before the deadline is set, ends earlier
# than what Python takes for a number.
_LONGEST_S = 365 * 24 * 3600
# A tebibyte: what is meant as no bound at all is no bound on a disk either.
_MOST_EVENTS_MB = 1 << 20

# A program of torch's holds half a gibibyte before it has done anything.
_LEAST_CAP_GIB = 0.5
_MOST_CAP_GIB = 1 << 20


def _check_memory_cap(cap: float | None, no_probe: Sequence[str]) -> None:
    """Refuse a value of ``--memory-cap`` that bounds nothing or lets nothing run."""
    if cap is None:
        return
    if not _LEAST_CAP_GIB <= cap <= _MOST_CAP_GIB:  # a NaN is in no range
        raise UsageError(
            f"--memory-cap must be {_LEAST_CAP_GIB} GiB or more (and at most {_MOST_CAP_GIB}), "
            f"got {cap:g}"
        )
    if "memory" in no_probe:
        raise UsageError("--memory-cap is set by the memory probe, which --no-probe leaves out")


@dataclass(frozen=True)
class WatchOptions:
    """How a program is watched and what is done with the report."""

    out: Path = Path("reports")
    """Folder for run folders."""
    timeout: float = 600.0
    """Seconds after which the program is ended; a program that hangs is diagnosed then."""
    json: bool = False
    """Print report.json instead of the report. What a program under harness.watch prints itself
    comes before it on stdout: use --passthrough (the report goes to stderr) or
    the file in the run folder."""
    expect: Names = ()
    """Roots that must be found, no more and no fewer, such as CR101; or clean."""
    expect_only: Names = ()
    """Findings that must be found, roots or not, no more and no fewer."""
    keep_cache: bool = False
    """Use the compile caches that are there, not fresh ones; races in compiling then hide."""
    no_probe: NoProbe = ()
    compile_detail: bool = True
    """Read torch's trace log, too: compile ids and a check that no compile was missed."""
    torch_trace: bool = False
    """Also have torch write its structured logs (TORCH_TRACE) to the run folder, for tlparse."""
    source: bool = True
    """Show the program's source lines in the report."""
    inventory: bool = False
    """Print for each compiled function its cache entries, and why calls used none of them."""
    max_events_mb: int = 256
    """Bound on recorded steps and the like, in MiB; compiles and errors are always kept."""
    stop_on: str = ""
    """End the program once this is found: found (any root), a code, or after-warmup-compile."""
    alert: str = ""
    """Shell command to run for each root found: JSON on stdin, $COMPILE_RACE_CODE."""

    memory_cap: float | None = None
    """GiB that the program gets, so that running out harms nobody else: of each GPU, or, where none
    is visible, of its own data."""

    def check(self, known_causes: Sequence[str]) -> None:
        """Refuse what cannot be done. Raises UsageError."""
        check_timeout(self.timeout)
        if not 1 <= self.max_events_mb <= _MOST_EVENTS_MB:
            raise UsageError(
                f"--max-events-mb must be at least 1 and at most {_MOST_EVENTS_MB}, "
                f"got {self.max_events_mb}"
            )
        for flag, text in (("--out", str(self.out)), ("--alert", self.alert)):
            if text and not text.strip():
                raise UsageError(f"{flag} is blank")
        _check_memory_cap(self.memory_cap, self.no_probe)
        check_probes(self.no_probe)
        check_expectations(self.expect, self.expect_only, known_causes)
        check_stop_on(self.stop_on, known_causes)


@dataclass(frozen=True)
class RunSpec:
    """The built-in trainer under the watch."""

    train: TrainConfig = field(default_factory=TrainConfig)
    """The trainer's settings."""
    watch: WatchOptions = field(default_factory=WatchOptions)
    """The watch and the report."""
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """The order of the threads."""
    verbose: bool = False
    """Show the trainer's output as it comes."""
    spec: Path | None = None
    """TOML file with tables train, watch and schedule; flags outrank it."""

    def trainer_arguments(self) -> list[str]:
        """Return arguments for ``python -m dflash_min.train``."""
        return to_argv(self.train)

    def drafter_threads(self) -> int:
        """Return how many drafter threads there will be.

        Raises:
            UsageError: as `resolved_anywhere`.
        """
        return len(resolved_anywhere(self.train).layout.drafters)


@dataclass(frozen=True)
class WatchSpec:
    """Any program under the watch."""

    watch: WatchOptions = field(default_factory=WatchOptions)
    """The watch and the report."""
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """The order of the threads."""
    python: str | None = None
    """Interpreter to run the program with (default: the one that runs this command)."""
    passthrough: bool = False
    """End with the program's own exit code, 128+n for a signal, instead of the verdict's, and leave
    stdout to the program: the report goes to stderr."""


def resolved_anywhere(train: TrainConfig, *, on_gpu: bool = False) -> Resolved:
    """Return what the trainer chooses on a machine on which it can run.

    Args:
        train: the trainer's settings.
        on_gpu: whether that machine has GPUs, if it may have any; it has them in any case if the
            settings ask for them.

    Raises:
        UsageError: for settings that are wrong whatever the number of GPUs, which is not known
            here, without torch. The trainer checks the others.
    """
    refusal: UsageError | None = None
    for gpus in (_MANY_GPUS, 0) if on_gpu else (0, _MANY_GPUS):
        try:
            return resolve(train, gpus)
        except UsageError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def arguments_of_file(path: Path) -> list[str]:
    """Return the arguments that a ``RunSpec`` file stands for.

    Raises:
        UsageError: naming the file, and the table or key that is not known.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--spec {path}: {error.strerror}") from error
    except ValueError as error:  # no TOML, no UTF-8, or a name that holds a NUL
        raise UsageError(f"--spec {path}: {error}") from error
    groups: dict[str, type[DataclassInstance]] = {
        "train": TrainConfig,
        "watch": WatchOptions,
        "schedule": ScheduleOptions,
    }
    argv: list[str] = []
    for name, table in tables.items():
        if name not in groups or not isinstance(table, Mapping):
            raise UsageError(f"--spec {path}: there is no table [{name}], only {_TABLES}")
        known = {f.name: f for f in dataclasses.fields(groups[name])}
        for key, value in table.items():
            if key not in known:
                raise UsageError(f"--spec {path}: [{name}] has no key {key}")
            if value in ("", []) and known[key].default in ("", ()):
                continue  # nothing is named, as where the key is left out
            argv += _flag(key, value, switch=known[key].type in {bool, "bool"})
    return argv


def spec_file(argv: Sequence[str]) -> Path | None:
    """Return what ``--spec`` names in a command line, before the rest of it is read."""
    for index, word in enumerate(argv):
        if word == "--spec" and index + 1 < len(argv):
            return Path(argv[index + 1])
        if word.startswith("--spec="):
            return Path(word.removeprefix("--spec="))
    return None


def _flag(key: str, value: Any, *, switch: bool) -> list[str]:  # noqa: ANN401 - whatever TOML holds
    flag = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        if switch:
            return [flag if value else flag.replace("--", "--no-", 1)]
        value = str(value).lower()  # dynamic = true, whose flag takes a word
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]
