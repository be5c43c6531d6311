"""What ``harness.certify`` is asked to do: dataclasses that are its command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from harness.spec import check_timeout

EXPLORED = 12
_MOST = 100_000


@dataclass(frozen=True)
class CertifyOptions:
    """How much is run, and what is done with the certificate."""

    explore: int = EXPLORED
    """So many explored schedules, besides controls and named plans; each is a fresh process."""
    jobs: Annotated[int, tyro.conf.arg(aliases=["-j"])] = 1
    """So many runs at a time."""
    apply: bool = False
    """Where a warm-up is missing, run it all again with the one suggested."""
    out: Path = Path("reports")
    """Folder for the certificate's folder."""
    timeout: float = 600.0
    """Seconds after which a run is ended."""
    json: bool = False
    """Print certificate.json instead of the text."""
    keep_cache: bool = False
    """Use the compile caches that are there, not fresh ones; races in compiling then hide."""

    def check(self) -> None:
        """Refuse what cannot be done. Raises UsageError."""
        check_timeout(self.timeout)
        if not 1 <= self.explore <= _MOST:
            raise UsageError(f"--explore counts schedules, 1 to {_MOST}, got {self.explore}")
        if not 1 <= self.jobs <= 512:
            raise UsageError(f"--jobs counts runs at a time, 1 to 512, got {self.jobs}")


@dataclass(frozen=True)
class TrainerSpec:
    """The built-in trainer."""

    train: TrainConfig = field(default_factory=TrainConfig)
    """The trainer's settings."""
    certify: CertifyOptions = field(default_factory=CertifyOptions)
    """The proof."""


@dataclass(frozen=True)
class ProgramSpec:
    """Any program."""

    certify: CertifyOptions = field(default_factory=CertifyOptions)
    """The proof."""
    python: str | None = None
    """Interpreter to run the program with (default: the one that runs this command)."""
