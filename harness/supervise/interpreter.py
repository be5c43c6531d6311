"""Whether an interpreter can be watched and what it has, asked before anything is started."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError
from dflash_min.versions import check_torch_version
from harness.child import versions
from harness.child.settings import VARIABLE

PYTHON_FROM = (3, 11)
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter. ``torch`` and ``cuda`` are empty where it has none."""

    path: str
    python: str
    torch: str
    cuda: str


def inspect(path: str, module: str | None = None) -> Interpreter:
    """Ask an interpreter for its versions, without importing torch in it.

    Args:
        path: the interpreter; a bare name is looked up on PATH.
        module: a module that it is going to run with ``-m``.

    Raises:
        UsageError: it cannot be started, is no Python 3.11 or later, or lacks the module.
    """
    script = str(Path(versions.__file__))
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    try:
        done = subprocess.run(
            [path, script, *([module] if module else [])],
            capture_output=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"cannot start the interpreter {path}: {_why(path, error)}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{path} did not answer within {_TIMEOUT_S:.0f} s") from error
    answer = _answer(done.stdout)
    if answer is None:
        raise UsageError(f"{path} is not a Python interpreter that can run the watch")
    interpreter = Interpreter(
        path=path,
        python=str(answer["python"]),
        torch=str(answer["torch"]),
        cuda=str(answer["cuda"]),
    )
    if (_version(interpreter.python) or (0, 0)) < PYTHON_FROM:
        raise UsageError(f"Python 3.11 or later is needed; {path} is {interpreter.python}")
    if not answer["module"]:
        raise UsageError(f"{path} has no module named {module}")
    return interpreter


def check_torch(interpreter: Interpreter, *, needed: bool) -> None:
    """Refuse a torch that was never tried, and none where one is needed.

    Raises:
        UsageError: naming what was found and what is supported.
    """
    if interpreter.torch or needed:
        check_torch_version(interpreter.torch, interpreter.path)


def _why(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.sep not in path:
        here = f"; the file here is {os.curdir}{os.sep}{path}" if Path(path).exists() else ""
        return f"PATH has no such command{here}"
    if isinstance(error, FileNotFoundError) and Path(path).is_file():
        return "the file is there, and what its first line names is not"
    return error.strerror or type(error).__name__


def _answer(output: bytes) -> Mapping[str, object] | None:
    # An interpreter's start-up files may print something before.
    lines = output.decode("utf-8", errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    wanted = {"python", "torch", "cuda", "module"}
    return answer if isinstance(answer, dict) and wanted <= answer.keys() else None


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return None if match is None else (int(match[1]), int(match[2]))
