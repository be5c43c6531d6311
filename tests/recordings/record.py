"""Makes the recordings again: ``python tests/recordings/record.py NAME ... [--python PATH]``.

Runs ``programs/NAME.py`` (or a scenario's program, see ``SCENARIOS``, or ``../cases/NAME*.py``)
under the watch and keeps the folder's events and end in ``NAME/``, with the paths of the machine
replaced. ``NAME+fixed`` passes ``fixed`` to the program, or its word for that; ``NAME+t211`` only
names the recording apart.

A folder recorded elsewhere is taken in by ``record.py NAME --from FOLDER --replace OLD=NEW ...``.
Stacks of traces inside compiles, of block masks and of backward calls, which are most of a long
run's bytes, are then left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.events.files import ENDED, recordings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Torch's guards quote source lines with the end of their path.
CUT_PATH = re.compile(r"# [^ ]*(?:tests/recordings/programs|tests/cases|repro/programs)/")
#: Scenarios' programs that are recorded as they are: the mode that fails and the one that is fixed.
SCENARIOS = {
    "cache_lookup": ("race", "fixed"),
    "cold_autotune": ("race", "warmed"),
    "checkpoint_mismatch": ("stance", "fixed"),
    "compiled_autograd": ("race", "locked"),
    "container_mutated": ("race", "copy"),
    "device_guard_freed": ("ended", "warmed"),
    "fork_while_compiling": ("fork", "spawn"),
    "fx_traces_overlap": ("race", "locked"),
    "is_compiling_seen": ("race", "fixed"),
    "lazy_import": ("race", "imported"),
    "lock_order": ("crossed", "outside"),
    "config_patch_leak": ("race", "fixed"),
    "fullgraph_counter": ("race", "fixed"),
    "reset_under_load": ("race", "fixed"),
    "stance_leak": ("eager", "fixed"),
}
#: Recordings of one program: its name, and what comes before the mode.
KINDS = {
    kind: ("warmed_otherwise", kind)
    for kind in (
        "dispatch_keys",
        "dtype",
        "dynamic_marking",
        "layout",
        "numeric_flags",
        "python_value",
        "requires_grad",
    )
}
#: Recordings of a scenario's program in a mode of its own.
MODES = {"reset_crash": ("reset_under_load", "crash")}
OOM_COUNTER = "/sys/fs/cgroup/job.slice/memory.events"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--timeout", default="90")
    parser.add_argument("--no-detail", action="store_true")
    parser.add_argument("--memory-cap", metavar="GIB")
    parser.add_argument("--from", dest="folder", type=Path)
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW")
    args = parser.parse_args()
    if args.folder:
        (name,) = args.names
        replace = [tuple(pair.split("=", 1)) for pair in args.replace]
        copy(args.folder, HERE / name, replace, slim=True)
        return
    for name in args.names:
        record(name, args)


def record(name: str, args: argparse.Namespace) -> None:
    base, _, variant = name.partition("+")
    source, arguments = arguments_of(base, variant)
    program = (ROOT / "repro" if source != base or base in SCENARIOS else HERE) / "programs"
    program /= f"{source}.py"
    if not program.exists():
        program = next((ROOT / "tests" / "cases").glob(f"{base}*.py"))
    options = ["--timeout", args.timeout, "--python", args.python]
    options += ["--no-compile-detail"] if args.no_detail else []
    options += ["--memory-cap", args.memory_cap] if args.memory_cap else []
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-m", "harness.watch", *options, "--out", out, "--", str(program)]
        words += arguments
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        folders = list(Path(out).iterdir())
        if not folders:
            sys.exit(f"{name}: nothing was recorded\n{ran.stderr}")
        keep(folders[0], HERE / name, args.python, program.parent)
        report = json.loads((folders[0] / "report.json").read_text())
    codes = [f"{f['code']}{'*' if f['root'] else ''}" for f in report["findings"]]
    print(f"{name}: {report['verdict']} {' '.join(codes)}\n    {report['headline']}")


def arguments_of(base: str, variant: str) -> tuple[str, list[str]]:
    """The program of a recording, and the arguments that it is run with."""
    if base in KINDS:
        program, kind = KINDS[base]
        return program, [kind, "fixed" if variant == "fixed" else "fails"]
    if base in MODES:
        program, mode = MODES[base]
        return program, [mode]
    failing, fixed = SCENARIOS.get(base, ("", "fixed"))
    mode = fixed if variant == "fixed" else failing
    return base, [mode] if mode else []


def keep(source: Path, target: Path, python: str, programs: Path) -> None:
    places = prefixes(python)
    replace = [
        (str(source), "/home/user/run"),
        (str(source.parent), "/home/user/runs"),
        (str(programs), "/home/user/project"),
        (str(ROOT), "/home/user/harness"),
        (places["prefix"], "/home/user/venv"),
        (str(Path(python).parent.parent), "/home/user/venv"),
        (places["base_prefix"], "/usr"),
        (sys.prefix, "/home/user/venv"),
        (tempfile.gettempdir() + "/", "/home/user/tmp/"),
    ]
    copy(source, target, replace)


def copy(source: Path, target: Path, replace: list[tuple[str, str]], *, slim: bool = False) -> None:
    target.mkdir(exist_ok=True)
    for pattern in ("events*.jsonl", "steady-*.jsonl", "run.json", "ended.json"):
        for old in target.glob(pattern):  # other processes had other numbers the last time
            old.unlink()
        for file in source.glob(pattern):
            text = file.read_text()
            if slim and file.suffix == ".jsonl":
                text = "".join(map(without_stack, text.splitlines(keepends=True)))
            text = re.sub(r'("oom_counter": ")[^"]+', rf"\1{OOM_COUNTER}", text)
            text = CUT_PATH.sub("# ome/user/project/", text)
            for old, new in replace:
                text = text.replace(old, new)
            (target / file.name).write_text(text)
    resized(target)


def resized(folder: Path) -> None:
    """The sizes that ended.json gives, as they are after the paths were replaced."""
    ended = folder / ENDED
    if ended.exists() and "recordings" in (fields := json.loads(ended.read_text())):
        fields["recordings"] = recordings(folder)
        ended.write_text(json.dumps(fields, indent=2) + "\n")


def without_stack(line: str) -> str:
    event = json.loads(line)
    traced = event["point"] == "fx_trace" and event["data"]["in_compile"]
    if not traced and event["point"] not in {"block_mask", "backward"}:
        return line
    event.pop("where", None)
    return json.dumps(event) + "\n"


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
