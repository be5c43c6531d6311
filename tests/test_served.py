"""What programs do that a watch can get wrong, on real torch: nothing changes and all is seen.

One program does it all at once; more of the kind, without torch, is in ``tests/child``.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from harness.diagnosis.report import Report, loads
from harness.events.files import event_files

PROGRAM = """
import asyncio, concurrent.futures as cf, faulthandler, logging.config, signal, sys, threading
import torch
import torch.multiprocessing as multiprocessing

log = []
fast = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")


def child(rank):
    import torch._dynamo
    own = torch.compile(lambda x: x.cos() * rank, backend="eager")
    own(torch.ones(3))
    assert "COMPILE_RACE_WATCH" in __import__("os").environ


def train(x):
    fast(x).backward()
    return x.grad is not None


three = threading.Barrier(3, timeout=60)


def train_beside_two():
    three.wait()  # else one idle thread of the pool takes all three
    return train(leaf())


def leaf():
    return torch.ones(3, requires_grad=True)


def fails():
    raise ValueError("nobody reads this")


def main():
    logging.config.dictConfig(
        {"version": 1, "root": {"level": "WARNING"}, "disable_existing_loggers": False}
    )
    sys.excepthook = lambda kind, error, _: print("mine:", error)
    signal.signal(signal.SIGUSR1, lambda *_: log.append("signal"))
    multiprocessing.spawn(child, nprocs=1)
    train(leaf())
    lines = []
    sys.settrace(lambda frame, event, argument: lines.append(frame.f_code.co_name))
    train(leaf())
    sys.settrace(None)
    log.append(f"traced {'train' in lines}")
    signal.raise_signal(signal.SIGUSR1)

    async def serve():
        return await asyncio.gather(*(asyncio.to_thread(train_beside_two) for _ in range(3)))

    log.append(str(asyncio.run(serve())))
    done = threading.Event()
    timer = threading.Timer(0, lambda: (train(leaf()), done.set()))
    timer.start()
    done.wait()
    pool = cf.ThreadPoolExecutor(1)
    cf.wait([pool.submit(fails)])  # its future is let go unread
    first, never = threading.Event(), threading.Event()

    def forever():
        train(leaf())
        first.set()
        never.wait()

    threading.Thread(target=forever, daemon=True, name="alive at exit").start()
    first.wait()
    print(log, flush=True)
    raise RuntimeError("the program's own end")


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Report, list[Any], Path]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    words = [sys.executable, "-m", "harness.watch", "--out", str(folder / "runs")]
    done = subprocess.run(
        [*words, "--passthrough", "--timeout", "120", "--", str(folder / "program.py")],
        env={**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    (run,) = (folder / "runs").iterdir()
    events = [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
    return done, loads((run / "report.json").read_bytes()), events, run


def test_the_program_ran_as_it_would_alone(served) -> None:
    done, *_ = served
    assert done.returncode == 1, done.stderr
    log, mine = done.stdout.splitlines()
    assert log == "['traced True', 'signal', '[True, True, True]']"
    assert mine == "mine: the program's own end"


def test_every_thread_is_seen_with_its_calls_and_none_is_at_fault(served) -> None:
    _, report, _, _ = served
    called = {thread.thread.name for thread in report.threads if thread.compiled_calls}
    pool = {name for name in called if name.startswith("asyncio_")}
    assert len(pool) == 3
    assert {"MainThread", "alive at exit"} <= called - pool
    assert len(called - pool) == 3  # the timer's thread has a number for a name
    assert report.counts.threads_with_backward >= 5
    assert report.counts.compiles_after_warmup == 0


def test_the_unread_error_and_the_programs_own_are_all_that_is_found(served) -> None:
    _, report, _, _ = served
    assert {finding.code for finding in report.findings} <= {"CR901", "CR905"}
    said = {error.message: (error.via, error.read) for error in report.errors}
    assert said["nobody reads this"] == ("future", False)
    assert said["the program's own end"][0] == "main"


def test_the_recording_has_an_end_and_the_spawned_child_one_of_its_own(served) -> None:
    _, report, events, run = served
    assert events[-1]["point"] == "end"
    assert report.not_watched == ()
    assert "spawned by multiprocessing" in report.environment.roles.values()
    assert len(event_files(run)) == 2
