"""A zip that installs the watch where there is no network: ``python -m harness.pack OUT.zip``."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import tyro

import dflash_min
import harness
from dflash_min.cli import parse, say
from dflash_min.errors import UsageError
from harness.command import command
from harness.exits import ExitCode

PROG = "harness.pack"
WHEELS = "wheels"
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")
_HOW = """\
On the machine without a network, with any Python {python} (torch need not be in it):

    unzip {name}
    python3 -m venv watch
    watch/bin/python -m pip install --no-index --find-links {wheels} compile-race-harness

Then, with the interpreter that has torch and the program's packages, in which nothing is installed:

    watch/bin/python -m harness.watch --python /path/to/its/bin/python -- train.py
"""


@dataclass(frozen=True)
class Args:
    """What to pack, and for which machine."""

    out: tyro.conf.Positional[Path]
    """The zip to write."""

    for_python: str = f"{sys.version_info[0]}.{sys.version_info[1]}"
    """Version of the Python that the watch will run in there, such as 3.12."""

    for_platform: str = ""
    """pip's name of the platform there, such as manylinux_2_28_x86_64; if empty, this machine's."""


@command(PROG)
def main(argv: list[str]) -> int:
    """Build our wheel, download what it needs, and zip both; returns the exit code."""
    args = parse(Args, argv, prog=PROG, description=__doc__ or "")
    if not args.out.resolve().parent.is_dir():
        raise UsageError(f"{args.out}: its folder is not there")
    with tempfile.TemporaryDirectory() as made:
        wheels = Path(made) / WHEELS
        _download(_build(Path(made) / "source", wheels), wheels, args)
        _zip(wheels, args)
        count = len(list(wheels.iterdir()))
    say(PROG, f"{count} wheels for Python {args.for_python} are in {args.out}; HOW.txt says how")
    return ExitCode.CLEAN


def _build(source: Path, wheels: Path) -> Path:
    """Our own wheel, built from a copy, since a build writes into the folder that it builds."""
    root = Path(harness.__file__).parents[1]
    if not (root / _SOURCES[0]).is_file():
        raise UsageError(f"{root} is no checkout: the zip can only be made from one")
    source.mkdir()
    for package in (harness, dflash_min):
        folder = Path(package.__file__ or "").parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, source / folder.name, ignore=ignored)
    for name in _SOURCES:
        shutil.copy(root / name, source)
    _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _download(wheel: Path, wheels: Path, args: Args) -> None:
    platform = ["--platform", args.for_platform] if args.for_platform else []
    kind = ["--only-binary=:all:", "--python-version", args.for_python, *platform]
    _pip("download", "--dest", str(wheels), *kind, str(wheel))


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it does not say why"]
        errors = [line for line in said if line.startswith("ERROR")] or said
        raise UsageError(f"pip {words[0]} failed: {errors[-1]}")


def _zip(wheels: Path, args: Args) -> None:
    how = _HOW.format(python=args.for_python, name=args.out.name, wheels=WHEELS)
    try:
        with zipfile.ZipFile(args.out, "w") as archive:  # wheels are compressed already
            archive.writestr("HOW.txt", how)
            for path in sorted(wheels.iterdir()):
                archive.write(path, f"{WHEELS}/{path.name}")
    except OSError as error:
        raise UsageError(f"cannot write {args.out}: {error.strerror or error}") from error


if __name__ == "__main__":
    sys.exit(main())
