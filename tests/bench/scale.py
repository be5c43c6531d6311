"""How long a long recording takes to be diagnosed, and how much memory.

``python tests/bench/scale.py --events 10000 100000 1000000 10000000`` writes recordings of so many
events, diagnoses each in a fresh process (recording, timelines, causes, report) and prints a table.
Two mixes of events, both from hundreds of threads:

``night``: what a run of the trainer all night leaves. One event in a hundred is kept, of the kinds
below; the others are steps, in segments.

``kept``: every event is kept and none was thinned out by the recorder. By events: 18 % compiled
calls, 18 % misses, 18 % waits for the lock, 19 % compiles, 17 % FX traces, 3 % backward calls, 8 %
block masks, 2 % errors, 1 % thread starts and ends. A fifth of the compiles are of code objects
that were never seen before, and of the threads that start each has the native id of one that ended.

Takes about two minutes on two cores, and a quarter of an hour with the ten million events.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import usage

PID = 4000
THREADS = 300
CODES = 60
SEGMENT_BYTES = 32 << 20
LIMITS = {"seconds": 60.0, "bytes": 1 << 30}


def main() -> int:
    parser = usage.parser(__doc__)
    parser.add_argument(
        "--events", type=usage.whole(100, 10**9), nargs="+", default=[10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--mix", nargs="+", choices=["night", "kept"], default=["night", "kept"])
    parser.add_argument("--folder", type=Path, help="where to write the recordings; they are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    if not args.json:
        head = ("mix", "events", "MB", "wall s", "CPU s", "us/event", "peak MiB", "verdict")
        print("{:>6} {:>11} {:>7} {:>7} {:>7} {:>9} {:>9}  {}".format(*head))
    over = False
    for mix in args.mix:
        for events in args.events:
            row = run(mix, events, args.folder)
            over |= row["wall_s"] > LIMITS["seconds"] or row["peak_bytes"] > LIMITS["bytes"]
            print(json.dumps(row) if args.json else line(row), flush=True)
    return int(over)


def line(row: dict[str, Any]) -> str:
    found = " ".join(row["roots"])
    return (
        f"{row['mix']:>6} {row['events']:>11,} {row['bytes'] / 1e6:>7,.0f} {row['wall_s']:>7.2f} "
        f"{row['cpu_s']:>7.2f} {1e6 * row['cpu_s'] / row['events']:>9.2f} "
        f"{row['peak_bytes'] / 2**20:>9,.0f}  {row['verdict']} {found}"
    )


def run(mix: str, events: int, keep: Path | None) -> dict[str, Any]:
    """Write a recording, diagnose it in a fresh process and return the figures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)) / f"{mix}-{events}"
        if not folder.exists():
            write(folder, mix, events)
        words = [sys.executable, __file__, "--measure", str(folder)]
        out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {"mix": mix, "events": events, **json.loads(out)}


def measure(folder: Path) -> dict[str, Any]:
    """Diagnose a recording in this process."""
    from harness.diagnosis.build import diagnose
    from harness.diagnosis.report import dumps

    size = sum(path.stat().st_size for path in folder.iterdir())
    wall, cpu = time.perf_counter(), time.process_time()
    report = diagnose(folder)
    written = len(dumps(report))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # Of this program alone: getrusage would also count what the parent had before it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    return {
        "bytes": size,
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "peak_bytes": peak,
        "report_bytes": written,
        "verdict": report.verdict,
        "roots": sorted({f.code for f in report.findings if f.root}),
        "codes": sorted({f.code for f in report.findings}),
        "compiles": report.counts.compiles,
    }


def write(folder: Path, mix: str, events: int, seed: int = 0) -> None:
    """Write a recording of so many events."""
    folder.mkdir(parents=True)
    script = Script(random.Random(seed))
    every = 100 if mix == "night" else 1
    with (folder / "events.jsonl").open("w") as kept:
        segment, number, size = None, 0, 0
        kept.writelines(script.beginning())
        for text in script.kept():
            kept.write(text)
            for _ in range(every - 1):
                if segment is None or size > SEGMENT_BYTES:
                    number, size = number + 1, 0
                    if segment is not None:
                        segment.close()
                    segment = (folder / f"steady-{PID}-{number:06d}.jsonl").open("w")
                size += segment.write(script.step())
            if script.seq >= events - 1:
                break
        if segment is not None:
            segment.close()
        kept.write(script.event("end", PID, None))
    (folder / "ended.json").write_text('{"exit_code": 0, "timeout_s": 60.0}')


def stack(depth: int, name: str) -> str:
    user = ["/home/user/project/train.py", 40, name, True]
    library = ["/home/user/venv/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", 989]
    frames = [user, *([*library, f"inner_{n}", False] for n in range(depth))]
    return json.dumps([*frames, ["/usr/lib/python3.12/threading.py", 1012, "run", False]])


def context(*, grad: bool) -> dict[str, Any]:
    return {
        "grad_mode": grad,
        "autocast": {"cpu": [False, "torch.bfloat16"], "cuda": [False, "torch.float16"]},
        "num_threads": 8,
        "default_dtype": "torch.float32",
        "numeric_flags": {"allow_tf32": False, "float32_matmul_precision": "highest"},
        "config": {"recompile_limit": 64},
    }


class Script:
    """Makes the events of one process, in order."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator
        self.seq = 0
        self.t = 1_000_000_000
        self.compiles = 0
        self.tids = [PID + 1 + number for number in range(THREADS)]
        self.stacks = [stack(depth, f"loop_{depth}") for depth in range(4, 20)]
        self.contexts = {grad: json.dumps(context(grad=grad)) for grad in (False, True)}

    def event(self, point: str, tid: int, data: str | None, edge: str = "instant", **rest: str):
        """One line."""
        self.seq += 1
        self.t += 100_000
        more = "".join(f', "{key}": {value}' for key, value in rest.items())
        told = "" if data is None else f', "data": {data}'
        return (
            f'{{"point": "{point}", "t_ns": {self.t}, "seq": {self.seq}, "pid": {PID}, '
            f'"tid": {tid}, "thread": "drafter-{tid - PID}", "edge": "{edge}", '
            f'"phase": "train"{more}{told}}}\n'
        )

    def beginning(self) -> Iterator[str]:
        """The header, the probes and a warm-up without gradients."""
        header = {
            "schema": 1,
            "harness": "0.1.0",
            "python": "3.12.3",
            "torch": "2.13.0",
            "triton": "",
            "cuda": "",
            "platform": "Linux",
            "cpus": 8,
            "argv": ["python", "train.py"],
            "started_unix": 1.0,
            "compile_detail": True,
        }
        yield self.event("header", PID, json.dumps(header))
        for name in ("threads", "futures", "wrapper", "guards", "compiles", "lock", "fx"):
            yield self.event("probe", PID, f'{{"name": "{name}", "state": "live"}}')
        for number in range(CODES):
            yield from self.compile(PID, number, grad=False, reason="")

    def kept(self) -> Iterator[str]:
        """Kept events for ever: what threads do between their start and their end."""
        makers = (
            (self.calls, 18),
            (self.misses, 7),
            (self.waiting, 12),
            (self.compiling, 9),
            (self.traces, 6),
            (self.backward, 4),
            (self.masks, 5),
            (self.errors, 2),
            (self.churn, 1),
        )
        chosen = [make for make, weight in makers for _ in range(weight)]
        for tid in self.tids:
            yield self.start(tid)
        while True:
            yield from self.random.choice(chosen)(self.random.choice(self.tids))

    def step(self) -> str:
        tid = self.random.choice(self.tids)
        data = f'{{"step": {self.seq}, "tokens": 4096, "seconds": 0.041327}}'
        return self.event("step", tid, data)

    def code(self, number: int) -> str:
        file = "/home/user/project/model.py"
        return f'{{"id": {number}, "name": "block_{number}", "file": "{file}", "line": {number}}}'

    def calls(self, tid: int) -> Iterator[str]:
        number = self.random.randrange(CODES)
        data = f'{{"code": {self.code(number)}, "first": true, "context": {self.contexts[True]}}}'
        yield self.event("wrapper", tid, data, where=self.random.choice(self.stacks))

    def misses(self, tid: int) -> Iterator[str]:
        number = self.random.randrange(CODES)
        yield self.miss(tid, number)
        yield self.miss(tid, number)

    def miss(self, tid: int, number: int) -> str:
        data = f'{{"code": {self.code(number)}, "entries": 3, "context": {self.contexts[True]}}}'
        return self.event("guard_miss", tid, data, where=self.random.choice(self.stacks))

    def waiting(self, tid: int) -> Iterator[str]:
        owner = self.random.choice(self.tids)
        data = f'{{"lock": "torch._dynamo.convert_frame.compile_lock", "owner_tid": {owner}}}'
        yield self.event("lock_wait", tid, data, "enter", where=self.random.choice(self.stacks))
        yield self.event("lock_wait", tid, data, "exit")

    def compiling(self, tid: int) -> Iterator[str]:
        """A miss that compiles; now and then another thread repeats it, or it is new code."""
        if self.random.random() < 0.2:
            yield from self.compile(tid, CODES + self.compiles, grad=True, reason="")
            return
        number = self.random.randrange(CODES)
        guard = self.random.choice(
            ("GLOBAL_STATE changed: grad_mode ", "tensor 'q' size mismatch at index 2. expected 5")
        )
        yield self.miss(tid, number)
        yield from self.compile(tid, number, grad=True, reason=f"0/0: {guard}")

    def compile(self, tid: int, number: int, *, grad: bool, reason: str) -> Iterator[str]:
        self.compiles += 1
        length = self.random.choice((128, 256, 512, 640))
        inputs = ", ".join(
            f'{{"name": "{name}", "shape": [1, 8, {length}, 64], "dtype": "torch.bfloat16", '
            f'"device": "cuda:0", "requires_grad": true}}'
            for name in ("query", "key", "value")
        )
        begun = (
            f'{{"code": {self.code(number)}, "context": {self.contexts[grad]}, '
            f'"inputs": [{inputs}], "entries": 3, "limit": 8}}'
        )
        guards = ", ".join(f'"tensor check of argument {n} on line {length}"' for n in range(12))
        entry = f'{{"digest": "{self.random.getrandbits(64):x}", "guards": [{guards}]}}'
        ended = (
            f'{{"code": {self.code(number)}, "ok": true, "entry": {entry}, '
            f'"reasons": [{json.dumps(reason) if reason else ""}]}}'
        )
        name = f'"{number}/{self.compiles}"'
        where = self.random.choice(self.stacks)
        yield self.event("dynamo_compile", tid, begun, "enter", compile_id=name, where=where)
        if self.random.random() < 0.5:
            yield from self.traces(tid)
        yield self.event("dynamo_compile", tid, ended, "exit", compile_id=name)

    def traces(self, tid: int) -> Iterator[str]:
        data = '{"tracer": "PythonKeyTracer", "in_compile": true}'
        yield self.event("fx_trace", tid, data, "enter", where=self.random.choice(self.stacks))
        yield self.event("fx_trace", tid, data, "exit")

    def backward(self, tid: int) -> Iterator[str]:
        yield self.event("backward", tid, '{"count": 1}')

    def masks(self, tid: int) -> Iterator[str]:
        other = self.random.choice(self.tids)
        data = f'{{"compiling_tids": [{other}]}}'
        yield self.event("block_mask", tid, data, "enter", where=self.random.choice(self.stacks))
        yield self.event("block_mask", tid, data, "exit")

    def errors(self, tid: int) -> Iterator[str]:
        frames = self.random.choice(self.stacks)
        message = json.dumps(f"shard {self.random.randrange(1000)} is gone")
        link = f'{{"id": {self.seq}, "type": "OSError", "message": {message}, "frames": {frames}}}'
        data = f'{{"via": "future", "future": {self.seq}, "chain": [{link}]}}'
        yield self.event("thread_error", tid, data)

    def start(self, tid: int) -> str:
        data = f'{{"child_tid": {tid}, "name": "drafter-{tid - PID}"}}'
        return self.event("thread_start", PID, data, where=self.stacks[0])

    def churn(self, tid: int) -> Iterator[str]:
        """A thread ends, and another one begins with its native id."""
        yield self.event("thread_end", tid, None)
        yield self.start(tid)


if __name__ == "__main__":
    sys.exit(main())
