"""Whole runs: two ways to watch one program agree, and a probe taken out leaves no pass."""

import json
import os
import shutil
import textwrap
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from harness import watch
from harness.child.attach import PROBES
from harness.diagnosis.build import diagnose
from harness.events.files import event_files

#: How many probes are left out of one real run; 1 in the environment is every probe by itself.
TOGETHER = int(os.environ.get("PROBES_LEFT_OUT_TOGETHER", "11"))
RUNS = -(-len(PROBES) // TOGETHER)
# Probes that stand beside each other in the order of attaching go to different runs.
GROUPS = [tuple(PROBES)[first::RUNS] for first in range(RUNS)]

CLEAN = """
    import concurrent.futures
    import threading

    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    def block(x):
        return x.sin().sum()

    compiled = torch.compile(block, backend="aot_eager", dynamic=False)

    def train():
        compiled(torch.ones(4, requires_grad=True)).backward()
        create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")

    both = threading.Barrier(2)  # or one worker could be done before the other is asked for

    def train_beside_another():
        both.wait(60)
        train()

    train()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(train_beside_another) for _ in range(2)]:
            future.result()
"""


def run(out: Path, *words: str) -> tuple[int, dict]:
    """Watch a program; the exit code and the report."""
    code = watch.main(["--out", str(out), *words])
    (saved,) = out.glob("*/report.json")
    return code, json.loads(saved.read_text())


def roots(report: dict) -> set[str]:
    return {finding["code"] for finding in report["findings"] if finding["root"]}


def test_the_trainer_is_diagnosed_as_a_program_like_any_other(tmp_path) -> None:
    """As ``harness.run`` diagnoses it, which the command's own tests hold to the same root."""
    trainer = ("--threads", "2", "--steps", "2", "--warmup", "no_grad", "--device", "cpu")
    code, report = run(tmp_path, "--", "-m", "dflash_min.train", *trainer)
    assert code == 1
    assert roots(report) == {"CR101"}


IN_TURN = """
    import sys
    import threading

    import torch

    block = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")
    for _ in range(12):  # so many that nobody looks at the main thread's calls any more
        block(torch.ones(2, 4))

    turns = [threading.Event() for _ in range(4)]

    def call(turn, times):
        turns[turn].wait(60)
        for _ in range(times):
            block(torch.ones(3, 4))
        turns[turn + 1].set()

    def first():
        call(0, 12)
        if sys.argv[1] == "goes on":
            call(2, 1)

    threads = [
        threading.Thread(target=first, name="first"),
        threading.Thread(target=call, args=(1, 1), name="second"),
    ]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize(("mode", "found"), [("goes on", {"CR201"}), ("is done", set())])
def test_threads_that_call_in_turn_call_in_the_same_period(tmp_path, mode, found) -> None:
    """Though what they call is a hit by then, which is seen only where somebody looks for it."""
    (tmp_path / "in_turn.py").write_text(textwrap.dedent(IN_TURN))
    code, report = run(tmp_path, "--", str(tmp_path / "in_turn.py"), mode)
    assert code == bool(found)
    assert roots(report) == found


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "clean.py"
    path.write_text(textwrap.dedent(CLEAN))
    return path


@pytest.fixture(scope="module")
def watched(program, tmp_path_factory) -> tuple[int, dict, Path]:
    """The run with every probe: its exit code, its report and its folder."""
    out = tmp_path_factory.mktemp("watched")
    code, report = run(out, "--", str(program))
    (folder,) = out.iterdir()
    return code, report, folder


def states(report: dict, probes: Collection[str]) -> list[str]:
    return [item["state"] for item in report["not_watched"] if item["name"] in probes]


def test_with_every_probe_the_program_is_clean(watched) -> None:
    code, report, _ = watched
    assert (code, report["verdict"]) == (0, "clean"), report["headline"]
    assert report["counts"]["threads_with_backward"] == 3


@pytest.mark.parametrize("probes", GROUPS, ids="+".join)
def test_without_probes_a_program_runs_on_and_is_incomplete(probes, program, tmp_path) -> None:
    words = ("--no-probe", ",".join(probes), "--", str(program))
    code, report = run(tmp_path, *words)
    assert (code, report["verdict"]) == (4, "incomplete"), report["headline"]
    assert states(report, probes) == ["disabled"] * len(probes)
    assert report["findings"] == []


@pytest.mark.parametrize("probe", PROBES)
def test_each_probe_alone_is_enough_to_be_incomplete(probe, watched, tmp_path) -> None:
    """The clean run's recording, in which one probe says that it was left out."""
    *_, folder = watched
    run_folder = shutil.copytree(folder, tmp_path / "run")
    for path in event_files(run_folder):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(disabled(line, probe) for line in lines))
    report = json.loads(msgspec.json.encode(diagnose(run_folder)))
    assert (report["exit_code"], report["verdict"]) == (4, "incomplete"), report["headline"]
    assert states(report, [probe]) == ["disabled"]
    assert report["findings"] == []


def disabled(line: bytes, probe: str) -> bytes:
    event = json.loads(line)
    if event["point"] != "probe" or event["data"]["name"] != probe:
        return line
    event["data"]["state"] = "disabled"
    return json.dumps(event).encode() + b"\n"
