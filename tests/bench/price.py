"""What watching costs, beside what torch's own logs cost.

``python tests/bench/price.py`` switches the watch on and off inside one process (see
``price_inside.py``) and prints medians with 95 % intervals: nanoseconds a guarded frame, and
percent of a training step and of a cold compile. ``off`` against ``off`` is the noise. On a GPU a
step and a compile are timed by the wall, and the device's work is waited for at both ends.

Takes at most seven minutes on two cores: a case whose time is over (a minute for a frame, two for a
step, three for a compile) ends with the blocks that it has, at least five, whose number stands
beside each figure. --quick takes about a minute and says how long all would have taken.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import usage
from figures import interval, machine

from harness.child.settings import VARIABLE, Settings
from harness.supervise.launch import SITE

HERE = Path(__file__).parent
CASES = ("frame", "step", "compile")
BOUNDS = {
    ("guarded frame", "watched"): 200.0,
    ("training step", "watched"): 1.0,
    ("cold compile", "watched, no compile detail"): 3.0,
}


def effects(found, arm):
    """What an arm added to the bare program in each block: ns a frame, or percent."""
    added = []
    for first, one, other, last in found["blocks"][arm]:
        bare, with_arm = first + last, one + other
        if found["unit"] == "%":
            added.append(100 * (with_arm / bare - 1))
        else:
            added.append((with_arm - bare) / 2 / found["per"])
    return added


def bare_ns(found):
    """The bare program's median time of one frame, step or compile."""
    times = [t for rows in found["blocks"].values() for row in rows for t in (row[0], row[3])]
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
    for arm in found["blocks"]:
        added = effects(found, arm)
        middle, (low, high) = statistics.median(added), interval(added)
        name = "off against off (noise)" if arm == "off" else arm
        verdict = judged(case, arm, low, high)
        lines.append(
            f"  {name:28} {middle:+8.2f} {unit:2}  [{low:+.2f}, {high:+.2f}]  "
            f"{len(added)} blocks  {verdict}".rstrip()
        )
        row = {"case": case, "arm": name, "unit": unit, "median": middle, "low": low, "high": high}
        rows.append({**row, "blocks": len(added), "bare_ns": bare})
    if case == "cold compile":
        watched, trace = (statistics.median(effects(found, a)) for a in ("watched", "TORCH_TRACE"))
        sign = "less" if watched < trace else "not less"
        lines.append(f"  watched with compile detail costs {sign} than TORCH_TRACE")
    return lines, rows


def whole_time(raw):
    """How long the cases would have taken with all their blocks, as far as time goes."""
    times = {}
    for found in raw:
        each = found["wall_s"] / len(found["blocks"]["off"])
        times[found["case"]] = found["setup_s"] + min(each * found["full"], found["most_s"])
    said = ", ".join(f"{case} {seconds:.0f} s" for case, seconds in times.items())
    return f"without --quick these would take about {sum(times.values()):.0f} s: {said}"


def measure(options):
    """Run the measured program under the watch; yield what it prints as it comes."""
    arguments = ["--device", options.device, "--blocks", str(options.blocks)]
    arguments += ["--quick"] if options.quick else []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(folder=folder, harness="bench")
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [str(SITE), str(HERE.parents[1]), before]))
        command = [sys.executable, str(HERE / "price_inside.py"), *arguments]
        with subprocess.Popen(
            [*command, "--cases", *options.cases],
            env={**os.environ, VARIABLE: settings.dumps(), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        ) as program:
            for line in program.stdout:
                yield json.loads(line)
        if program.returncode:
            raise SystemExit(f"the measured program ended with {program.returncode}")


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="few blocks, to see that it works")
    parser.add_argument(
        "--blocks",
        type=usage.whole(1, 100_000),
        default=0,
        help="blocks of each arm, however long they take (150, 40 and 20, as far as time goes)",
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=CASES,
        metavar="CASE",
        help=f"some of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--json", type=usage.writable, help="write the figures to this file as well"
    )
    options = parser.parse_args()
    measured = measure(options)
    about = next(measured)
    print(machine(about["torch"], about["device"]))
    print("switched:", ", ".join(about["replaced"]), "and the guard hook", flush=True)
    rows, raw = [], []
    for found in measured:
        lines, more = table(found)
        print("\n".join(lines), flush=True)
        rows += more
        raw.append(found)
    if options.quick:
        print(whole_time(raw), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows, "raw": raw}, indent=1))


if __name__ == "__main__":
    main()
