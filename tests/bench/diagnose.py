"""Measures ``harness.diagnose``: ``python tests/bench/diagnose.py --gib 1`` or ``--inputs 100000``.

``--gib``: a training log of that size, with a recompile, a traceback and a warning in it now and
then, is made and diagnosed by the command; printed are seconds and the most memory. ``--inputs``:
so many mutated and random inputs, drawn from the logs in ``tests/logs`` with ``--seed``; none may
raise, take more than a few seconds, or leave the exit codes. ``--jobs`` runs them in as many
processes.
"""

import concurrent.futures
import contextlib
import io
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import usage

from harness.diagnose import main as diagnose
from harness.exits import ExitCode

LOGS = Path(__file__).parent.parent / "logs"
SLOW_S = 20.0
CODES = {ExitCode.CLEAN, ExitCode.FOUND, ExitCode.INCOMPLETE, ExitCode.NOTHING_RAN}
STEP = (
    "[rank{rank}]:2026-11-29 12:00:{second:02d},{step:03d} INFO trainer step {step} loss 3.1415 "
    "lr 1e-4 tokens/s 123456 grad_norm 0.731\n"
)
EVENT = """\
[rank{rank}]:V1129 12:00:00.000000 {pid} torch/_dynamo/guards.py:5396] [0/{n}] [__recompiles] \
Recompiling function block in /home/user/project/model.py:12
[rank{rank}]:V1129 12:00:00.000000 {pid} torch/_dynamo/guards.py:5396] [0/{n}] [__recompiles] \
    triggered by the following guard failure(s):
[rank{rank}]:V1129 12:00:00.000000 {pid} torch/_dynamo/guards.py:5396] [0/{n}] [__recompiles] \
    - 0/0: GLOBAL_STATE changed: grad_mode \n\
[rank{rank}]:Exception in thread drafter-{n}:
[rank{rank}]:Traceback (most recent call last):
[rank{rank}]:  File "/home/user/project/train.py", line 45, in loop
[rank{rank}]:    block(x)
[rank{rank}]:ValueError: labels must not be empty, step {n}
"""
TOKENS = (
    b"Traceback (most recent call last):\n", b'  File "x.py", line 3, in f\n', b"\x00", b"\xff\xfe",
    b"\x1f\x8b", b"\x1b[31m", b"\r", b"[rank1]:", b"Fatal Python error: Aborted\n",
    b"Current thread 0x00007f (most recent call first):\n", b'{"dynamo_start": {"stack": [{}]}}\n',
    b"V1129 12:00:00.000000 1 a.py:1] [0/0] [__guards] TREE_GUARD_MANAGER:\n", b"\n\n\n",
    b"During handling of the above exception, another exception occurred:\n", b"  | ", b"  +-+---",
    b"Recompiling function f in a.py:1\n", b"    - 0/0: Unexpected recompilation: x\n",
    b"99999999999999999999", b"ValueError: " + b"x" * 3000 + b"\n", b"[" * 2000, b"0/0: ",
)  # fmt: skip


def main() -> int:
    parser = usage.parser(__doc__)
    parser.add_argument("--gib", type=usage.decimal(0, 100), default=0.0)
    parser.add_argument("--inputs", type=usage.whole(0, 10_000_000), default=0)
    parser.add_argument("--seed", type=usage.whole(0, 2**31), default=1)
    parser.add_argument("-j", "--jobs", type=usage.whole(1, 64), default=1)
    args = parser.parse_args()
    worst = 0
    if args.gib:
        worst = max(worst, stream(args.gib))
    if args.inputs:
        worst = max(worst, inputs(args.inputs, args.seed, args.jobs))
    return worst


def stream(gib: float) -> int:
    """Diagnose a log of so many GiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        write_log(path, round(gib * 2**30))
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "harness.diagnose", str(path)], capture_output=True, check=False
        )
        seconds = time.monotonic() - began
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        size = path.stat().st_size / 2**30
    print(f"{size:.2f} GiB: {seconds:.1f} s, {most:.2f} GiB of memory, exit {done.returncode}")
    return int(done.returncode != ExitCode.FOUND or most > 1)


def write_log(path: Path, size: int) -> None:
    """A log of four ranks: ordinary lines, and something of note every 20,000 of them."""
    written, number = 0, 0
    with path.open("w") as file:
        while written < size:
            lines = [STEP.format(rank=i % 4, second=i % 60, step=i % 1000) for i in range(20_000)]
            number += 1
            lines.append(EVENT.format(rank=number % 4, pid=1000 + number % 4, n=number))
            text = "".join(lines)
            file.write(text)
            written += len(text)


def inputs(number: int, seed: int, jobs: int) -> int:
    """Diagnose so many inputs; returns 1 if one of them raised or was slow."""
    began = time.monotonic()
    share = [(seed * 1000 + job, len(range(job, number, jobs))) for job in range(jobs)]
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        results = list(pool.map(_share, share))
    failed = [text for bad, _, _ in results for text in bad]
    slowest = max(slow for _, slow, _ in results)
    codes: dict[int, int] = {}
    for _, _, counted in results:
        for code, count in counted.items():
            codes[code] = codes.get(code, 0) + count
    for text in failed[:5]:
        print(text)
    said = ", ".join(f"exit {code}: {count:,}" for code, count in sorted(codes.items()))
    print(
        f"{number:,} inputs (seed {seed}): {len(failed)} raised or were slow; the slowest took "
        f"{slowest:.2f} s; {said}; {time.monotonic() - began:.0f} s in all"
    )
    return int(bool(failed))


def _share(job: tuple[int, int]) -> tuple[list[str], float, dict[int, int]]:
    seed, number = job
    draw = random.Random(seed)
    corpus = [path.read_bytes()[:20_000] for path in sorted(LOGS.rglob("*")) if path.is_file()]
    failed: list[str] = []
    slowest = 0.0
    codes: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        for n in range(number):
            path.write_bytes(mutated(draw, corpus))
            began = time.monotonic()
            try:
                code = quiet([str(path), *(["--json"] if n % 2 else [])])
                codes[code] = codes.get(code, 0) + 1
                if code not in CODES:
                    failed.append(f"seed {seed}, input {n}: exit {code}")
            except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
                failed.append(f"seed {seed}, input {n}:\n{traceback.format_exc()}")
            seconds = time.monotonic() - began
            slowest = max(slowest, seconds)
            if seconds > SLOW_S:
                failed.append(f"seed {seed}, input {n}: {seconds:.1f} s")
    return failed, slowest, codes


def quiet(argv: list[str]) -> int:
    """Run the command without showing what it prints."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        return diagnose(argv)


def mutated(draw: random.Random, corpus: list[bytes]) -> bytes:
    """An input: random bytes, or parts of real texts, cut, repeated, mixed and damaged."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(4000))
    data = bytearray()
    for _ in range(draw.randrange(1, 4)):
        text = draw.choice(corpus) if corpus else b""
        at = draw.randrange(len(text) + 1)
        data += text[at : at + draw.randrange(1, 6000)]
    for _ in range(draw.randrange(12)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                del data[at : at + draw.randrange(200)]
            case 1:
                data[at:at] = draw.choice(TOKENS)
            case 2:
                data[at : at + 1] = draw.randbytes(1)
            case 3:
                data[at:at] = data[at : at + draw.randrange(500)] * draw.randrange(1, 4)
            case _:
                lines = bytes(data).split(b"\n")
                draw.shuffle(lines)
                data = bytearray(b"\n".join(lines))
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
