"""How often each command gives its verdict: ``python tests/bench/reliability.py --runs 20``.

Every run is cold (its own compile cache) and in a process of its own. Counts are printed, never
percentages, and every run that differed is named with its report folder; nothing is run again.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ALLOWED_AFTER_ROOT = {"CR301", "CR303", "CR310", "CR901"}


@dataclass(frozen=True)
class Expectation:
    """A command and what every run of it must give."""

    name: str
    flags: tuple[str, ...]
    verdict: str
    roots: frozenset[str]


EXPECTATIONS = (
    Expectation("grad", ("--warmup", "grad"), "clean", frozenset()),
    Expectation("no_grad", ("--warmup", "no_grad"), "found", frozenset({"CR101"})),
    Expectation("none", ("--warmup", "none"), "found", frozenset({"CR208"})),
)


def run_once(expectation: Expectation, out: Path) -> tuple[str, float, str]:
    """One cold run: the chain of codes it found, its wall seconds, and its difference if any."""
    command = [sys.executable, "-m", "harness.run", "--threads", "3", *expectation.flags]
    start = time.monotonic()
    done = subprocess.run(
        [*command, "--json", "--out", str(out)], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return "no report", seconds, done.stderr[-500:]
    roots = {f["code"] for f in report["findings"] if f["root"]}
    others = {f["code"] for f in report["findings"]} - roots
    chain = " ".join([*sorted(roots), *sorted(others)]) or report["verdict"]
    as_expected = (
        report["verdict"] == expectation.verdict
        and roots == expectation.roots
        and others
        <= (ALLOWED_AFTER_ROOT | {"CR207"} if expectation.name == "none" else ALLOWED_AFTER_ROOT)
    )
    return chain, seconds, "" if as_expected else report["headline"]


def main() -> int:
    """Run every command ``--runs`` times and print one table; exit 1 if any run differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", choices=[e.name for e in EXPECTATIONS])
    parser.add_argument("--out", type=Path, default=Path("reports/reliability"))
    options = parser.parse_args()
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"torch {torch.__version__}, python {platform.python_version()}, {device}, cold caches")
    differed = 0
    for expectation in EXPECTATIONS:
        if options.only not in (None, expectation.name):
            continue
        chains: Counter[str] = Counter()
        times: list[float] = []
        right = 0
        for number in range(options.runs):
            chain, seconds, difference = run_once(expectation, options.out)
            chains[chain] += 1
            times.append(seconds)
            right += not difference
            if difference:
                print(f"  {expectation.name} run {number + 1}: {chain}: {difference}")
        differed += options.runs - right
        times.sort()
        seen = ", ".join(f"{chain} x{count}" for chain, count in chains.most_common())
        print(
            f"{expectation.name}: {right}/{options.runs} as expected; {seen}; "
            f"{times[0]:.1f} / {times[len(times) // 2]:.1f} / {times[-1]:.1f} s min/median/max"
        )
    return 1 if differed else 0


if __name__ == "__main__":
    sys.exit(main())
