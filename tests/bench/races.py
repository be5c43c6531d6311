"""Does watching move the race? The same trainer, with the watch and without, in turn.

``python tests/bench/races.py --runs 20 --jobs 5`` runs the trainer after a warm-up without
gradients so many times in each arm, each run cold, and prints side by side how many runs raised,
errors a run and recompiles a run, with 95 % intervals. Errors are those that the trainer itself
names at its end, recompiles those that dynamo itself has counted: the same in both arms.

Takes about 20 s a run on two cores, so the default 40 runs take a quarter of an hour; --within
bounds it.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import usage
from figures import interval, machine, wilson

ROOT = Path(__file__).resolve().parents[2]
COUNTING = Path(__file__).resolve().with_name("counting")
TRAINER = ("dflash_min.train", "--threads", "3", "--warmup", "no_grad")
# The last line that the trainer prints itself: "dflash_min.train: 2 threads failed: A, B".
FAILED = re.compile(r"^dflash_min\.train: .*: ((?:\w+)(?:, \w+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One run. ``recompiles`` is None where the process died before it could count."""

    watched: bool
    code: int
    seconds: float
    errors: tuple[str, ...]
    recompiles: int | None
    tail: str


def run(watched, extra, timeout_s):
    """Run the trainer once, cold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = os.pathsep.join(filter(None, [str(COUNTING), str(ROOT), os.getenv("PYTHONPATH")]))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "COMPILE_COUNTS": str(folder / "counts"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }
        command = [sys.executable, "-m", *TRAINER, *extra]
        if watched:
            options = ["--out", str(folder / "out"), "--timeout", str(timeout_s), "--passthrough"]
            # The watch gives the program caches of its own, so both are cold alike.
            words = [sys.executable, "-m", "harness.watch", *options, "--", *command[1:]]
        else:
            words = command
        start = time.monotonic()
        try:
            done = subprocess.run(
                words, env=environment, capture_output=True, timeout=timeout_s + 60, check=False
            )
            code, said = done.returncode, done.stderr.decode("utf-8", "replace")
        except subprocess.TimeoutExpired as error:
            code, said = 124, (error.stderr or b"").decode("utf-8", "replace")
        seconds = time.monotonic() - start
        failed = FAILED.findall(said)
        counts = folder / "counts"
        recompiles = json.loads(counts.read_text())["recompiles"] if counts.exists() else None
    errors = tuple(failed[-1].split(", ")) if failed else ()
    return Run(watched, code, seconds, errors, recompiles, said[-400:])


def mean_of(values):
    """A mean with its interval, as text."""
    if not values:
        return "-"
    low, high = interval(values, statistics.fmean)
    return f"{statistics.fmean(values):.2f} [{low:.2f}, {high:.2f}]"


def column(runs):
    """What one arm came to."""
    raised = sum(bool(r.errors) for r in runs)
    low, high = wilson(raised, len(runs))
    kinds = Counter(kind for r in runs for kind in r.errors)
    counted = [r.recompiles for r in runs if r.recompiles is not None]
    other = [r.code for r in runs if r.code not in {0, 1} or (r.code == 1 and not r.errors)]
    return {
        "runs": str(len(runs)),
        "runs that raised": f"{raised} of {len(runs)} [{low:.2f}, {high:.2f}]",
        "errors a run": mean_of([len(r.errors) for r in runs]),
        "kinds of error": ", ".join(f"{k} x{n}" for k, n in kinds.most_common()) or "none",
        "recompiles a run": mean_of(counted),
        "recompiles, counted": " ".join(f"{n}x{c}" for n, c in sorted(Counter(counted).items())),
        "not counted": str(len(runs) - len(counted)),
        "other endings": ", ".join(map(str, other)) or "none",
        "median seconds": f"{statistics.median(r.seconds for r in runs):.1f}",
    }


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--runs", type=usage.whole(1, 100_000), default=20, help="in each arm")
    parser.add_argument("--jobs", type=usage.whole(1, 512), default=1, help="at a time")
    parser.add_argument("--quick", action="store_true", help="two runs in each arm")
    parser.add_argument(
        "--timeout", type=usage.decimal(1, 86_400), default=300.0, help="seconds a run may take"
    )
    parser.add_argument(
        "--within",
        type=usage.decimal(1, float("inf")),
        default=float("inf"),
        help="seconds after which no run is begun",
    )
    parser.add_argument("--json", type=usage.writable, help="write every run to this file as well")
    parser.add_argument("extra", nargs="*", help="further arguments of the trainer, after --")
    options = parser.parse_args()
    count = 2 if options.quick else options.runs
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(machine(torch.__version__, gpu), flush=True)
    print(f"python -m {' '.join([*TRAINER, *options.extra])}, {options.jobs} at a time, cold")
    # In turn, and the first of each pair in turn as well.
    order = [watched for number in range(count) for watched in (number % 2 > 0, number % 2 == 0)]
    last = time.monotonic() + options.within

    def run_in_time(watched):
        return run(watched, options.extra, options.timeout) if time.monotonic() < last else None

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [done for done in pool.map(run_in_time, order) if done is not None]
    bare, watched = (column([r for r in runs if r.watched is arm]) for arm in (False, True))
    print(f"{'':20}  {'not watched':44}  watched")
    for name, value in bare.items():
        print(f"{name:20}  {value:44}  {watched[name]}")
    for odd in (r for r in runs if r.code not in {0, 1}):
        print(f"ended with {odd.code}, watched {odd.watched}: {' '.join(odd.tail.split())}")
    if options.json:
        fields = [{**vars(r), "errors": list(r.errors)} for r in runs]
        options.json.write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    main()
