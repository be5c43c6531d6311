"""Every figure by one command: ``python tests/bench/all.py``, or ``--quick`` to see that all works.

A bench that is missing or fails is named at the end, and the others are run all the same. Each has
--help, which says what it measures and how long that takes: together about eight hours on two
cores, --quick a quarter of an hour.
"""

import subprocess
import sys
import time
from pathlib import Path

import usage

HERE = Path(__file__).resolve().parent
# What each is run with, in full and with --quick. The device is left to three of them.
BENCHES = {
    "price.py": ((), ("--quick",)),
    "night.py": ((), ("--quick",)),
    "scale.py": (
        ("--events", "10000", "100000", "1000000", "10000000"),
        ("--events", "10000", "100000"),
    ),
    "endings.py": (("--light", "1000", "--trainer", "60"), ("--light", "12", "--trainer", "1")),
    "races.py": (("--runs", "20"), ("--quick",)),
    "reliability.py": (("--runs", "20", "--cases"), ("--runs", "1")),
    "forced.py": (("--count", "50", "-j", "2"), ("--count", "1", "--plan", "stampede")),
    "scripts.py": (("--count", "20"), ("--count", "1", "--plans", "stampede")),
    "search.py": ((), ("--budget-s", "60")),
    "step.py": ((), ("--steps", "3")),
    "roles.py": ((), ("--steps", "3")),
    "recipe.py": ((), ("--quick", "--prompts", "4")),
    "diagnose.py": (("--gib", "1"), ("--gib", "0.01")),
}
HOT_PATH = ("-m", "pytest", "-q", "-s", str(HERE / "test_hot_path.py"))


def run(name, words):
    """Run one bench; return what is to be said of it at the end."""
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    code = subprocess.run([sys.executable, *words], check=False, cwd=HERE.parents[1]).returncode
    took = f"{time.monotonic() - start:.0f} s"
    return f"{name}: {took}" if code == 0 else f"{name}: ended with {code} after {took}"


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs each: rough figures")
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="for price.py, step.py and roles.py",
    )
    known = ["hot_path", *(name.removesuffix(".py") for name in BENCHES)]
    parser.add_argument("--only", nargs="+", choices=known, help="some of them")
    options = parser.parse_args()
    names = [n for n in BENCHES if not options.only or n.removesuffix(".py") in options.only]
    said = []
    if not options.only or "hot_path" in options.only:
        said.append(run("hot_path", HOT_PATH))
    for name in names:
        if not (HERE / name).exists():
            said.append(f"{name}: missing")
            continue
        words = [str(HERE / name), *BENCHES[name][options.quick]]
        if name in {"price.py", "step.py", "roles.py"}:
            words += ["--device", options.device]
        said.append(run(name, words))
    print("\n" + "\n".join(said))
    return int(any("ended with" in line or "missing" in line for line in said))


if __name__ == "__main__":
    sys.exit(main())
