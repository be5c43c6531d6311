"""``harness.pack``: what is in the zip (``tests/bench/offline.py`` makes one, and installs it)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import harness
from harness import pack


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: notes what it is asked and leaves wheels where they are wanted."""
    asked: list[tuple[str, ...]] = []

    def run(command, **options):
        words = tuple(command[command.index("pip") + 1 :])
        asked.append(words)
        folder = Path(words[words.index("--wheel-dir" if "wheel" in words else "--dest") + 1])
        folder.mkdir(exist_ok=True)
        if "wheel" in words:
            assert (Path(words[-1]) / "harness" / "child" / "site" / "sitecustomize.py").is_file()
            assert (Path(words[-1]) / "dflash_min" / "errors.py").is_file()
            assert not list(Path(words[-1]).rglob("__pycache__"))
            (folder / "compile_race_harness-1-py3-none-any.whl").write_bytes(b"ours")
        else:
            (folder / "msgspec-1-cp312.whl").write_bytes(b"theirs")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_zip_has_the_wheels_and_says_how(pip, tmp_path, capsys) -> None:
    out = tmp_path / "race.zip"
    words = ["--for-python", "3.12", "--for-platform", "manylinux_2_28_x86_64"]
    assert pack.main([str(out), *words]) == 0
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        how = archive.read("HOW.txt").decode()
    assert names == [
        "HOW.txt",
        "wheels/compile_race_harness-1-py3-none-any.whl",
        "wheels/msgspec-1-cp312.whl",
    ]
    assert "pip install --no-index --find-links wheels compile-race-harness" in how
    assert "unzip race.zip" in how
    built, downloaded = pip
    assert "--no-deps" in built
    assert downloaded[-1].endswith("compile_race_harness-1-py3-none-any.whl")
    assert "--only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64" in " ".join(
        downloaded
    )
    assert "2 wheels for Python 3.12" in capsys.readouterr().err


def refused(words, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        pack.main(words)
    assert ended.value.code == 2
    said: str = capsys.readouterr().err
    assert said.startswith("harness.pack: error: ")
    assert said.count("\n") == 1
    return said


def test_what_cannot_be_done_is_one_line(tmp_path, capsys, monkeypatch) -> None:
    assert "its folder is not there" in refused([str(tmp_path / "no" / "x.zip")], capsys)
    fails = subprocess.CompletedProcess(
        [], 1, "", "noise\nERROR: no such thing\nERROR: none at all"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: fails)
    out = tmp_path / "x.zip"
    assert "pip wheel failed: ERROR: none at all" in refused([str(out)], capsys)
    assert not out.exists()


def test_without_a_checkout_it_says_so(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(harness, "__file__", str(tmp_path / "lib" / "harness" / "__init__.py"))
    assert "is no checkout" in refused([str(tmp_path / "x.zip")], capsys)


def test_this_python_is_the_one_packed_for_unless_another_is_named() -> None:
    assert pack.Args(Path("x.zip")).for_python == ".".join(map(str, sys.version_info[:2]))
