"""The wheel: what is in it, and that the harness works from it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = (
    "import sys, setuptools.build_meta as backend; "
    "print(backend.build_wheel(sys.argv[1]), file=sys.stderr)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    # A build writes into the folder that it builds from.
    for name in ("harness", "dflash_min", "tests", "repro"):
        ignore = shutil.ignore_patterns("__pycache__", "recordings")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    (path,) = out.glob("*.whl")
    return path


def test_it_holds_the_two_packages_whole_and_nothing_else(wheel) -> None:
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"harness", "dflash_min"}
    expected = {
        path.relative_to(ROOT)
        for folder in ("harness", "dflash_min")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names, sorted(map(str, expected - names))
    assert {
        Path("harness/child/site/sitecustomize.py"),
        Path("harness/py.typed"),
        Path("dflash_min/py.typed"),
    } <= names
    assert any(name.parent == Path("harness/render/templates") for name in names)
    (licence,) = (name for name in names if name.name == "LICENSE")
    assert b"Apache License" in zipfile.ZipFile(wheel).read(str(licence))


def test_a_program_is_watched_and_reported_on_from_it(wheel, tmp_path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "program.py").write_text("print('ran')")
    done = subprocess.run(
        [sys.executable, "-m", "harness.watch", "--", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    (report,) = tmp_path.glob("reports/*/report.html")
    assert done.returncode == 5
    assert done.stderr == f"harness.watch: recording in {report.parent}\n"
    assert "Nothing ran" in report.read_text(encoding="utf-8")
