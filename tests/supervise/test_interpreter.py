"""What is asked of an interpreter before anything is started."""

import sys
from pathlib import Path

import pytest

from dflash_min.errors import UsageError
from harness.child import versions
from harness.supervise.interpreter import Interpreter, check_torch, inspect


def test_our_own_interpreter() -> None:
    import torch

    interpreter = inspect(sys.executable)
    assert interpreter.python == sys.version.split()[0]
    assert interpreter.torch == torch.__version__
    assert interpreter.cuda == (torch.version.cuda or "")
    check_torch(interpreter, needed=True)


def test_a_module_is_looked_for_without_being_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit('it was run')")
    inspect(sys.executable, "mine.train")
    inspect(sys.executable, "json.tool")
    with pytest.raises(UsageError, match="has no module named absent"):
        inspect(sys.executable, "absent.train")


def _fake(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


ANSWER = '{"python": "3.10.4", "torch": "", "cuda": "", "module": true}'
REFUSED = {
    "absent": (None, "cannot start the interpreter .*: No such file"),
    "no python": ("echo hello", "is not a Python interpreter"),
    "silent": ("true", "is not a Python interpreter"),
    "half an answer": ('echo \'{"python": "3.11"}\'', "is not a Python interpreter"),
    "too old": (f"echo '{ANSWER}'", r"Python 3\.11 or later is needed; .* is 3\.10\.4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_interpreters_that_cannot_be_used(tmp_path, what) -> None:
    script, message = REFUSED[what]
    path = str(tmp_path / "python") if script is None else _fake(tmp_path, script)
    with pytest.raises(UsageError, match=message):
        inspect(path)


def test_a_name_that_path_does_not_have(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"interpreter mine\.py: PATH has no such command$"):
        inspect("mine.py")
    (tmp_path / "mine.py").touch()
    with pytest.raises(UsageError, match=r"no such command; the file here is \./mine\.py$"):
        inspect("mine.py")


def test_a_script_whose_interpreter_is_gone(tmp_path) -> None:
    (tmp_path / "python").write_text("#!/no/such\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(UsageError, match="the file is there, and what its first line names is not"):
        inspect(str(tmp_path / "python"))


def test_what_start_up_files_print_is_skipped(tmp_path) -> None:
    path = _fake(tmp_path, f'echo welcome\nexec {sys.executable} "$@"')
    assert inspect(path).python == sys.version.split()[0]


TORCHES = {
    "2.10.1": False,
    "2.11.0": True,
    "2.13.0+cpu": True,
    "2.15.2": True,
    "2.16.0.dev20261101": False,
    "3.0": False,
    "1.13": False,
    "source": False,
}


@pytest.mark.parametrize("version", TORCHES)
def test_supported_versions_of_torch(version) -> None:
    interpreter = Interpreter("python", "3.11.7", version, "")
    if TORCHES[version]:
        check_torch(interpreter, needed=True)
        return
    with pytest.raises(UsageError, match=r"is not supported; 2\.11 to 2\.15 is"):
        check_torch(interpreter, needed=False)


def test_no_torch_matters_only_where_it_is_needed() -> None:
    interpreter = Interpreter("python", "3.11.7", "", "")
    check_torch(interpreter, needed=False)
    with pytest.raises(UsageError, match="python has no torch"):
        check_torch(interpreter, needed=True)


VERSION_FILE = """
from typing import Optional
__all__ = ['__version__', 'cuda']
__version__ = '2.14.0a0+git12'  # built
debug = False
cuda: Optional[str] = "13.0"
hip: Optional[str] = None
"""


def test_versions_are_read_without_running_the_package(tmp_path, monkeypatch) -> None:
    for name, file, text in (
        ("torch", "__init__.py", "raise SystemExit('imported')"),
        ("torch", "version.py", VERSION_FILE),
        (
            "triton",
            "__init__.py",
            '"""isort:skip_file"""\n__version__ = \'3.6.0\'\nimport nothing\n',
        ),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert versions.torch_version() == ("2.14.0a0+git12", "13.0")
    assert versions.triton_version() == "3.6.0"
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.12'\ncuda = None\nhip = '7.0'")
    assert versions.torch_version() == ("2.12", "hip 7.0")
    (tmp_path / "torch" / "version.py").unlink()
    assert versions.torch_version() == ("", "")
