"""Makes the recordings again: ``python tests/recordings/record.py NAME ... [--python PATH]``.

Runs ``programs/NAME.py`` (or ``../cases/NAME*.py``) under the watch and keeps the folder's events
and end in ``NAME/``, with the paths of the machine replaced. ``NAME+fixed`` passes ``fixed`` to the
program; ``NAME+t211`` only names the recording apart.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--timeout", default="90")
    parser.add_argument("--no-detail", action="store_true")
    args = parser.parse_args()
    for name in args.names:
        record(name, args)


def record(name: str, args: argparse.Namespace) -> None:
    base, _, variant = name.partition("+")
    program = HERE / "programs" / f"{base}.py"
    if not program.exists():
        program = next((ROOT / "tests" / "cases").glob(f"{base}*.py"))
    options = ["--timeout", args.timeout, "--python", args.python]
    options += ["--no-compile-detail"] if args.no_detail else []
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-m", "harness.watch", *options, "--out", out, "--", str(program)]
        words += ["fixed"] if variant == "fixed" else []
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        folders = list(Path(out).iterdir())
        if not folders:
            sys.exit(f"{name}: nothing was recorded\n{ran.stderr}")
        keep(folders[0], HERE / name, args.python, program.parent)
        report = json.loads((folders[0] / "report.json").read_text())
    codes = [f"{f['code']}{'*' if f['root'] else ''}" for f in report["findings"]]
    print(f"{name}: {report['verdict']} {' '.join(codes)}\n    {report['headline']}")


def keep(source: Path, target: Path, python: str, programs: Path) -> None:
    target.mkdir(exist_ok=True)
    places = prefixes(python)
    replace = [
        (str(source), "/home/user/run"),
        (str(source.parent), "/home/user/runs"),
        (str(programs), "/home/user/work"),
        (str(ROOT), "/home/user/harness"),
        (places["prefix"], "/home/user/venv"),
        (str(Path(python).parent.parent), "/home/user/venv"),
        (places["base_prefix"], "/usr"),
        (sys.prefix, "/home/user/venv"),
        (tempfile.gettempdir() + "/", "/home/user/tmp/"),
    ]
    for file in [
        *source.glob("events*.jsonl"),
        *source.glob("steady-*.jsonl"),
        source / "ended.json",
    ]:
        text = file.read_text()
        for old, new in replace:
            text = text.replace(old, new)
        (target / file.name).write_text(text)


def prefixes(python: str) -> dict[str, str]:
    code = (
        "import sys, json; names = ('prefix', 'base_prefix');"
        "print(json.dumps({n: getattr(sys, n) for n in names}))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    out = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(out.stdout)


if __name__ == "__main__":
    main()
