"""Whole runs: two ways to watch one program agree, and a probe taken out leaves no pass."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.child.attach import PROBES

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
    """Run a command of the harness; its exit code and its report."""
    name, *rest = words
    command = [sys.executable, "-m", name, "--out", str(out), "--json", *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def roots(report: dict) -> set[str]:
    return {finding["code"] for finding in report["findings"] if finding["root"]}


def test_the_trainer_is_diagnosed_alike_by_both_commands(tmp_path) -> None:
    options = ("--threads", "3", "--steps", "2", "--warmup", "no_grad", "--device", "cpu")
    built_in = run(tmp_path / "run", "harness.run", *options)
    # The program prints its own line before the report.
    watched = tmp_path / "watch"
    command = [sys.executable, "-m", "harness.watch", "--out", str(watched)]
    command += ["--", "-m", "dflash_min.train", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (saved,) = watched.glob("*/report.json")
    report = json.loads(saved.read_text())
    assert done.returncode == built_in[0] == 1
    assert roots(report) == roots(built_in[1]) == {"CR101"}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "clean.py"
    path.write_text(textwrap.dedent(CLEAN))
    return path


def test_with_every_probe_the_program_is_clean(program, tmp_path) -> None:
    code, report = run(tmp_path, "harness.watch", "--", str(program))
    assert (code, report["verdict"]) == (0, "clean"), report["headline"]
    assert report["counts"]["threads_with_backward"] == 3


@pytest.mark.parametrize("probe", PROBES)
def test_without_a_probe_it_is_incomplete(probe, program, tmp_path) -> None:
    code, report = run(tmp_path, "harness.watch", "--no-probe", probe, "--", str(program))
    assert (code, report["verdict"]) == (4, "incomplete"), report["headline"]
    named = [item for item in report["not_watched"] if item["name"] == probe]
    assert [item["state"] for item in named] == ["disabled"]
    assert report["findings"] == []
