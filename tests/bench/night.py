"""Eight hours in minutes: what a night's run writes and keeps in memory.

``python tests/bench/night.py`` runs a real compiled program under the watch, with as many cached
calls, steps, threads and errors as a night has, in ten equal rounds, and prints for each round the
size of the recording and the resident memory of the program. ``--scale 0.05`` does a twentieth.

Takes about half an hour on two cores, and at most --within seconds, an hour: then no further round
is begun, and the figures are those of the rounds that there were. --quick takes about a minute.
"""

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Three drafter threads with a step every tenth of a second, eight compiled calls a step.
STEPS, CALLS, THREADS, ERRORS = 864_000, 6_912_000, 100_000, 20_000
HOURS, ROUNDS, WORKERS = 8, 10, 3


def resident():
    """Bytes of resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def together(work, count):
    """Run ``work`` in so many threads to its end."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fail():
    raise LookupError("of the program's own")


def night(scale, folder, within):
    """The measured program, which ``--inside`` runs."""
    import torch

    from dflash_min import observe

    # Guards are evaluated, and the compiled code is free.
    function = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: lambda x: (x,))
    value = torch.zeros(1)

    def share(total):
        return max(int(total * scale) // ROUNDS, 1)

    def call():
        for _ in range(share(CALLS) // WORKERS):
            function(value)

    def step():
        for number in range(share(STEPS) // WORKERS):
            observe.step(number, 512, 0.1)

    def call_once():
        function(value)

    def churn():
        for number in range(share(THREADS)):
            thread = threading.Thread(target=call_once if number % 2 else int)
            thread.start()
            thread.join()

    def errors():
        with ThreadPoolExecutor(1) as pool:
            for _ in range(share(ERRORS)):
                pool.submit(fail).exception()

    rounds, began = [], time.monotonic()
    with observe.phase("train"):
        for _ in range(ROUNDS):
            start = time.monotonic()
            if start - began > within:
                break
            together(call, WORKERS)
            # One after the other: a write gives up the interpreter, and to get it back from a busy
            # thread takes 5 ms, which a training step waits for its device anyway.
            for _ in range(WORKERS):
                together(step, 1)
            churn()
            errors()
            sizes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
            steady = sum(size for name, size in sizes.items() if name.startswith("steady"))
            rounds.append(
                {
                    "seconds": round(time.monotonic() - start, 1),
                    "resident": resident(),
                    "kept": sum(sizes.values()) - steady,
                    "steady": steady,
                }
            )
    print(json.dumps({"steps_a_round": WORKERS * (share(STEPS) // WORKERS), "rounds": rounds}))


def measured(scale, max_events_mb=256, within=float("inf")):
    """Run the program under the watch; return its rounds and the folder's last sizes."""
    from harness.child.settings import VARIABLE, Settings
    from harness.supervise.launch import SITE

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(folder=folder, harness="bench", max_events_mb=max_events_mb)
        path = os.pathsep.join([str(SITE), str(Path(__file__).parents[2])])
        command = [sys.executable, __file__, "--inside", folder, "--scale", str(scale)]
        command += ["--within", str(within)]
        environment = {**os.environ, VARIABLE: settings.dumps(), "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        points = {}
        for line in (Path(folder) / "events.jsonl").read_bytes().splitlines():
            point = json.loads(line)["point"]
            points[point] = points.get(point, 0) + 1
    return {**json.loads(done.stdout), "points": points}


def main():
    import usage

    parser = usage.parser(__doc__)
    parser.add_argument(
        "--scale", type=usage.decimal(1e-4, 10), default=1.0, help="of a night, 0.0001 to 10"
    )
    parser.add_argument(
        "--within",
        type=usage.decimal(1, math.inf),
        default=3600.0,
        help="seconds after which no round is begun",
    )
    parser.add_argument("--quick", action="store_true", help="the same as --scale 0.02")
    parser.add_argument("--inside", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = 0.02 if options.quick else options.scale
    if options.inside:
        night(scale, Path(options.inside), options.within)
        return
    found = measured(scale, within=options.within)
    rounds = found["rounds"]
    if len(rounds) < ROUNDS:
        print(f"{len(rounds)} of {ROUNDS} rounds: --within {options.within:g} s were over")
    print(f"{scale:g} of a night of {HOURS} h: {STEPS:,} steps, {CALLS:,} cached calls in")
    print(f"{WORKERS} threads, {THREADS:,} threads that come and go, {ERRORS:,} errors; MB:")
    print("round  seconds  resident    kept  steady")
    for number, row in enumerate(found["rounds"], 1):
        sizes = "  ".join(f"{row[name] / 1e6:6.1f}" for name in ("resident", "kept", "steady"))
        print(f"{number:5}  {row['seconds']:7.1f}    {sizes}")
    steady = rounds[0]["steady"] / found["steps_a_round"]
    later = HOURS * scale * max(len(rounds) - 1, 1) / ROUNDS
    kept = (rounds[-1]["kept"] - rounds[0]["kept"]) / later
    print(f"a step takes {steady:.0f} bytes of the segments, an hour at 30 steps a second ", end="")
    print(f"{steady * 30 * 3600 / 1e6:.0f} MB until they are full; kept: {kept / 1e6:.2f} MB/h")
    print("kept events:", ", ".join(f"{n} {point}" for point, n in found["points"].items()))


if __name__ == "__main__":
    main()
