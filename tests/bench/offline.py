"""The watch on a machine without a network, whole: ``python tests/bench/offline.py``.

Makes the zip of ``harness.pack`` (which downloads), unpacks it, installs from it alone
(``pip --no-index``) into a new environment, and watches programs of ``tests/healthy`` with
``--python``, whose environment gets nothing. Where this user may (``unshare``), the network is cut
off from the install on; else that is said. Each step's seconds are printed.

Takes about two minutes on two cores.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import usage

HEALTHY = Path(__file__).parent.parent / "healthy"
PROGRAMS = ("h01_one_thread_compiles_first", "h04_inference_pool")
CUT_OFF = ("unshare", "--map-root-user", "--net")


def step(name, words, **options):
    """Run one step and print how long it took; its output where it fails ends the bench."""
    start = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    print(
        f"{name}: ended with {done.returncode} after {time.monotonic() - start:.0f} s", flush=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--python", default=sys.executable, help="the programs' interpreter")
    options = parser.parse_args()
    allowed = subprocess.run([*CUT_OFF, "true"], capture_output=True, check=False).returncode == 0
    cut = CUT_OFF if allowed else ()
    print("the network is cut off" if cut else "the network cannot be cut off here")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        step("pack", [sys.executable, "-m", "harness.pack", str(there / "race.zip")])
        print(f"  {(there / 'race.zip').stat().st_size / 2**20:.1f} MiB")
        with zipfile.ZipFile(there / "race.zip") as archive:
            archive.extractall(there)
        step("venv", [sys.executable, "-m", "venv", str(there / "watch")])
        python = str(there / "watch" / "bin" / "python")
        install = [python, "-m", "pip", "install", "--no-index", "--find-links"]
        step("install", [*cut, *install, str(there / "wheels"), "compile-race-harness"])
        for name in PROGRAMS:
            words = [python, "-m", "harness.watch", "--out", str(there / name), "--python"]
            program = str(HEALTHY / f"{name}.py")
            watch = [*cut, *words, options.python, "--", program]
            step(name, watch, cwd=there, env=environment)
            (saved,) = (there / name).glob("*/report.json")
            report = json.loads(saved.read_text())
            seen = report["counts"]["threads_with_compiled_calls"]
            print(f"  {report['verdict']}, {seen} threads with compiled calls")
            if report["verdict"] != "clean" or not seen:
                sys.exit(report["headline"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
