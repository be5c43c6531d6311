"""What watching costs, beside what torch's own logs cost.

``python tests/bench/price.py`` switches the watch on and off inside one process (see
``price_inside.py``) and prints medians with 95 % intervals: nanoseconds a guarded frame, and
percent of a training step and of a cold compile. ``off`` against ``off`` is the noise. Times are
those of the thread's processor; on a GPU those of the wall, with the device's work waited for at
both ends, and for a cold compile those of the process, up to where Triton compiles.

Where a process has its code and its objects lie favours one of two arms by up to three percent, in
all its blocks alike. So eight processes are measured, and each has one voice: the median of its
blocks. With -j they are measured side by side; on a GPU they begin so, and frames and steps are
measured in one after the other. What is measured runs where Python's stack has room (see
``room.py``), and a cold compile's time is that at an even pace of the processor (``pace.py``).

Takes about eight minutes on two cores, and stops there with the processes that it has, at least
five, whose number stands beside each figure; a cold compile on a GPU takes four minutes a process.
--quick takes about a minute and says how long all would have taken. --of shows the processes of
several runs as those of one, and measures nothing.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import usage
from figures import interval, machine

from harness.child.settings import VARIABLE, Settings
from harness.supervise.launch import SITE

HERE = Path(__file__).parent
#: Blocks of each arm in one process, in full and with --quick.
CASES = {"frame": (15, 5), "step": (12, 3), "compile": (1, 1)}
#: A process is long in beginning there, until Triton has compiled.
ON_GPU = {**CASES, "compile": (4, 1)}
ARMS = {
    "off": "off",
    "watched": "watched",
    "no-detail": "watched, no compile detail",
    "recompiles": "TORCH_LOGS=recompiles",
    "trace": "TORCH_TRACE",
}
PROCESSES, LEAST, QUICK = 8, 5, 2
MOST_S = 420.0
BOUNDS = {
    ("guarded frame", "watched"): 200.0,
    ("training step", "watched"): 1.0,
    ("cold compile", "watched, no compile detail"): 3.0,
}


def effects(found, arm):
    """What an arm added to the bare program in each process: ns a frame, or percent."""
    return [
        statistics.median(_added(block, found) for block in process[arm])
        for process in found["processes"]
    ]


def _added(block, found):
    first, one, other, last = block
    bare, with_arm = first + last, one + other
    if found["unit"] == "%":
        return 100 * (with_arm / bare - 1)
    return (with_arm - bare) / 2 / found["per"]


def bare_ns(found):
    """The bare program's median time of one frame, step or compile."""
    times = [
        time
        for process in found["processes"]
        for blocks in process.values()
        for first, _, _, last in blocks
        for time in (first, last)
    ]
    return statistics.median(times) / found["per"]


def judged(case, arm, low, high):
    """Whether the bound is held, as far as the interval says."""
    bound = BOUNDS.get((case, arm))
    if bound is None:
        return ""
    sign = "held" if high <= bound else "not held" if low > bound else "not decided"
    return f"bound {bound:g}: {sign}"


def table(found):
    """Lines for one case, and the rows as data."""
    case, unit = found["case"], found["unit"]
    bare = bare_ns(found)
    each = f"{bare / 1000:.1f} µs" if unit == "ns" else f"{bare / 1e6:.1f} ms"
    lines = [f"{case}: {each} without anything, by {found['clock']}"]
    rows = []
    for arm, blocks in found["processes"][0].items():
        added = effects(found, arm)
        middle, (low, high) = statistics.median(added), interval(added)
        name = "off against off (noise)" if arm == "off" else arm
        verdict = judged(case, arm, low, high)
        lines.append(
            f"  {name:28} {middle:+8.2f} {unit:2}  [{low:+.2f}, {high:+.2f}]  "
            f"{len(added)} processes  {verdict}".rstrip()
        )
        row = {"case": case, "arm": name, "unit": unit, "median": middle, "low": low, "high": high}
        counts = {"processes": len(added), "blocks": len(blocks)}
        rows.append({**row, **counts, "bare_ns": bare})
    both = "watched", "TORCH_TRACE"
    if case == "cold compile" and all(arm in found["processes"][0] for arm in both):
        watched, trace = (statistics.median(effects(found, arm)) for arm in both)
        sign = "less" if watched < trace else "not less"
        lines.append(f"  watched with compile detail costs {sign} than TORCH_TRACE")
    return lines, rows


def whole_time(measured, quick_s, options):
    """How long all would have taken, as a process of --quick has fewer blocks of each arm."""
    begun_s = quick_s - sum(found["wall_s"] for found in measured)
    per_case = ON_GPU if options.device == "cuda" else CASES
    blocks_s = sum(
        found["wall_s"] * per_case[found["name"]][0] / per_case[found["name"]][1]
        for found in measured
    )
    whole = min(MOST_S, PROCESSES * (begun_s + blocks_s))
    return f"without --quick these would take about {whole:.0f} s"


def one_process(options, turn):
    """Run the measured program under the watch; return what it prints, line by line."""
    per_case = ON_GPU if options.device == "cuda" else CASES
    counts = [f"{case}={per_case[case][options.quick]}" for case in options.cases]
    chosen = [f"--arm={ARMS[arm]}" for arm in options.arms]
    arguments = ["--device", options.device, "--turn", turn, *chosen, *counts]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(folder=folder, harness="bench")
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(SITE), str(HERE.parents[1]), before]))
        command = [sys.executable, str(HERE / "price_inside.py"), *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, VARIABLE: settings.dumps(), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"the measured program ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(options):
    """Measure processes, ``jobs`` at once; yield what each printed and the seconds it took."""
    count = options.processes or (QUICK if options.quick else PROCESSES)
    most_s = options.seconds or (math.inf if options.processes else MOST_S)
    begun = time.monotonic()

    def one(number):
        start = time.monotonic()
        if start - begun > most_s * (1 - 1 / count) and number >= LEAST:
            return None
        printed = one_process(options, Path(folder) / "turn")
        print(f"process {number + 1} of {count} is measured", file=sys.stderr, flush=True)
        return printed, time.monotonic() - start

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        yield from filter(None, pool.map(one, range(count)))


def of_runs(files):
    """What runs have written with --json, as if it were one: about it, and its cases.

    Raises ValueError if they do not go together.
    """
    abouts, cases = [], {}
    for file in files:
        try:
            run = json.loads(file.read_text())
            abouts.append(run["about"])
            keys = "name", "processes", "clock"
            raw = [(found, *(found[key] for key in keys)) for found in run["raw"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} was not written by --json") from error
        for found, name, processes, clock in raw:
            joined = cases.setdefault(name, {**found, "processes": []})
            if joined["processes"] and {*joined["processes"][0]} != {*processes[0]}:
                raise ValueError(f"{file} has other arms than the files before it")
            if joined["clock"] != clock:
                raise ValueError(f"{file} was measured in another way than the files before it")
            joined["processes"] += processes
    if any(about != abouts[0] for about in abouts):
        raise ValueError("these are runs of different machines or versions")
    return abouts[0], list(cases.values())


def of_now(options):
    """``of_runs`` of the run that is made now."""
    cases = defaultdict(list)
    for (about, *measured), took_s in measure(options):  # noqa: B007 - the last is printed
        for found in measured:
            cases[found["name"]].append(found)
    if options.quick:
        print(whole_time(measured, took_s, options), flush=True)
    return about, [
        {**found[0], "processes": [one["blocks"] for one in found]} for found in cases.values()
    ]


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="few blocks, to see that it works")
    parser.add_argument(
        "--processes",
        type=usage.whole(1, 1000),
        default=0,
        help=f"processes ({PROCESSES}, as far as time goes)",
    )
    parser.add_argument(
        "--seconds",
        type=usage.whole(1, 86_400),
        default=0,
        help=f"after which no process is begun ({MOST_S:.0f}, or with --processes however long)",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=usage.whole(1, 1000),
        default=1,
        help="processes at once, each of which needs some cores for itself",
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=f"some of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=ARMS,
        default=[],
        metavar="ARM",
        help=f"some of {', '.join(ARMS)} (all; no-detail only of a compile)",
    )
    parser.add_argument(
        "--json", type=usage.writable, help="write the figures to this file as well"
    )
    parser.add_argument(
        "--of", nargs="+", type=usage.readable, default=[], metavar="FILE", help="files of --json"
    )
    options = parser.parse_args()
    if options.of:
        try:
            about, raw = of_runs(options.of)
        except ValueError as error:
            parser.error(str(error))
        print(f"{len(options.of)} runs, torch {about['torch']}, {about['device']}")
    else:
        about, raw = of_now(options)
        print(machine(about["torch"], about["device"]))
    print("switched:", ", ".join(about["replaced"]), "and the guard hook")
    rows = []
    for found in raw:
        lines, more = table(found)
        print("\n".join(lines))
        rows += more
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows, "raw": raw}, indent=1))


if __name__ == "__main__":
    main()
