"""Others' code, bare and watched: ``python tests/bench/third_party.py --python VENV/bin/python``.

The interpreter is one of an environment with torch and transformers, accelerate, pytorch-lightning,
fastapi, httpx and pytest-run-parallel; nothing of ours is needed there. Each program of
``tests/third_party`` runs unchanged, once bare and ``--runs`` times under the watch. The watched
runs must give the bare one's stdout, stderr (apart from what the watch adds) and exit code, and the
verdict that is expected. A program whose packages are missing is named and counts as not run.

Takes about half a minute a run on two cores: seven minutes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import usage

PROGRAMS = Path(__file__).parent.parent / "third_party"
#: Times, process ids, rates and ports are not the same twice, with or without the watch.
_VARYING = (
    (re.compile(r"[IWE]\d{4} [\d:.]+ \d+ "), ""),
    (re.compile(r"in \d+\.\d+s"), "in T"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0xADDRESS"),
)


@dataclass(frozen=True)
class Program:
    """A program, the packages that it needs, and how it is started."""

    name: str
    packages: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    verdict: str = "clean"
    several: bool = False
    """Several processes write to stderr, in no order that is the same twice."""

    @property
    def words(self) -> tuple[str, ...]:
        """The command line after ``--``, and after the interpreter."""
        return (*self.before, str(PROGRAMS / f"{self.name}.py"), *self.after)


ALL = (
    Program("transformers_trainer", ("transformers", "accelerate")),
    Program("transformers_generate", ("transformers",)),
    Program("accelerate_loop", ("accelerate",)),
    Program(
        "torchrun_gloo", (), ("-m", "torch.distributed.run", "--nproc-per-node", "2"), several=True
    ),
    Program("lightning_fit", ("pytorch_lightning",)),
    Program("fastapi_pool", ("fastapi", "httpx")),
    Program(
        "run_parallel",
        ("pytest_run_parallel",),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--parallel-threads", "4"),
    ),
)


@dataclass(frozen=True)
class Done:
    """What a run gave."""

    code: int
    out: str
    err: str
    seconds: float
    verdict: str = ""
    headline: str = ""


def steady(text: str) -> str:
    """A program's output without what differs from run to run."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def run(command: list[str]) -> Done:
    """Run a command; its compile cache is a fresh one."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=PROGRAMS
        )
    seconds = time.monotonic() - start
    return Done(done.returncode, steady(done.stdout), steady(done.stderr), seconds)


def watched(program: Program, python: str) -> Done:
    """Run a program under the watch, with its own exit code and stdout."""
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-m", "harness.watch", "--out", out, "--passthrough"]
        done = run([*words, "--timeout", "300", "--python", python, "--", *program.words])
        reports = list(Path(out).glob("*/report.json"))
        report = json.loads(reports[0].read_text()) if reports else {}
    lines = done.err.splitlines(keepends=True)
    said = [line for line in lines if not line.startswith("harness.watch: recording in ")]
    verdict, headline = report.get("verdict", "no report"), report.get("headline", "")
    return Done(done.code, done.out, "".join(said), done.seconds, verdict, headline)


def difference(program: Program, bare: Done, run: Done) -> str:
    """What of a watched run is not as it should be; empty if nothing."""
    if run.code != bare.code:
        return f"exit code {run.code}, bare {bare.code}: {run.err[-500:]}"
    if run.out != bare.out:
        return f"stdout {run.out!r}, bare {bare.out!r}"
    lines, others = bare.err.splitlines(), run.err.splitlines()  # the report follows
    if Counter(lines) - Counter(others) if program.several else others[: len(lines)] != lines:
        return f"stderr {run.err!r}, bare {bare.err!r}"
    if run.verdict != program.verdict:
        return f"{run.verdict}, not {program.verdict}: {run.headline}"
    return ""


def main() -> int:
    """Run every program and print a line for each; exit 1 if any run differed or none ran."""
    parser = usage.parser(__doc__)
    parser.add_argument("--python", default=sys.executable, help="the programs' interpreter")
    parser.add_argument("--runs", type=usage.whole(1, 1000), default=1, help="watched, of each")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="not all of them")
    options = parser.parse_args()
    as_expected, not_run = 0, []
    chosen = [program for program in ALL if not options.only or program.name in options.only]
    for program in chosen:
        missing = _missing(program, options.python)
        if missing:
            not_run.append(program.name)
            print(f"{program.name}: not run, {', '.join(missing)} missing", flush=True)
            continue
        bare = run([options.python, *program.words])
        runs = [watched(program, options.python) for _ in range(options.runs)]
        wrong = [text for text in (difference(program, bare, done) for done in runs) if text]
        as_expected += not wrong
        times = "/".join(f"{done.seconds:.0f}" for done in runs)
        print(
            f"{program.name}: {len(runs) - len(wrong)}/{len(runs)} as bare (exit code {bare.code}, "
            f"{len(bare.out)} characters on stdout) and {program.verdict}; {bare.seconds:.0f} s "
            f"bare, {times} s watched",
            flush=True,
        )
        for text in wrong:
            print(f"  {text}", flush=True)
    print(f"{as_expected} of {len(chosen)} programs as expected, {len(not_run)} not run")
    return int(as_expected + len(not_run) < len(chosen) or as_expected == 0)


def _missing(program: Program, python: str) -> list[str]:
    asked = (
        "import importlib.util, sys\n"
        "print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    )
    done = subprocess.run(
        [python, "-c", asked, *program.packages], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(main())
