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

    def __init__(self, process: "subprocess.Popen[bytes] | None", failure: str = "") -> None:
        self._process = process
        self._failure = failure

    @classmethod
    def start(cls, told: dict[str, Any]) -> Self:
        """Start a guardian and tell it how to finish the run.

        One that cannot be started is a ``failure``, and the run is as it would be without.

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
        except OSError as error:
            return cls(None, f"it could not be started: {error.strerror or error}")
        guard = cls(process)
        guard.tell({**told, "path": _path()})
        return guard

    def tell(self, words: dict[str, Any]) -> None:
        """Send a message. A guardian that is gone is none of the run's concern."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()

    def failure(self) -> str:
        """Why nobody would end the program now if the parent were killed; empty: it is there."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return self._failure
        return f"it ended before the program did, {_how(code)}"

    def goodbye(self) -> None:
        """Let it go: the program's end is known and written down."""
        if self._process is None:
            return
        self.tell({"goodbye": True})
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"


def _path() -> list[str]:
    """Where our modules are, also where an editable install finds them by an import hook."""
    homes = [Path(guardian.__file__).parents[2], Path(errors.__file__).parents[1]]
    return [str(folder.absolute()) for folder in (*homes, *map(Path, sys.path))]
