"""The parent's side of its guardian (``harness.supervise.guardian``)."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from dflash_min import errors
from harness.supervise import guardian

_PATIENCE_S = 5.0


class Guard:
    """A guardian at work. It shares neither our session, nor our output, nor our folder."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    def start(cls, told: dict[str, Any]) -> Self | None:
        """Start a guardian and tell it how to finish the run; None if it cannot be started.

        Args:
            told: what ``harness.supervise.aftermath.finish`` takes, the program's pid excepted.
        """
        script = Path(guardian.__file__).resolve()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        except OSError:  # the run is as it would be without
            return None
        guard = cls(process)
        guard.tell({**told, "path": _path()})
        return guard

    def tell(self, words: dict[str, Any]) -> None:
        """Send a message. A guardian that is gone is none of the run's concern."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()

    def goodbye(self) -> None:
        """Let it go: the program's end is known and written down."""
        self.tell({"goodbye": True})
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _path() -> list[str]:
    """Where our modules are, also where an editable install finds them by an import hook."""
    homes = [Path(guardian.__file__).parents[2], Path(errors.__file__).parents[1]]
    return [str(folder.absolute()) for folder in (*homes, *map(Path, sys.path))]
