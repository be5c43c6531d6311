"""Who gets which GPU. Leases are files, so that none is needed to see two processes share none."""

import itertools
import subprocess
import sys

import pytest

from harness.diagnosis.memory_report import FailedRequest, Memory
from harness.diagnosis.report import Report
from harness.gating.gpus import HeldError, callers_gpus, lease, pinned, visible, worker_number
from harness.gating.machine import GIB, Gpu, busy, neighbour
from harness.statements import ThreadRef


@pytest.mark.parametrize(
    ("listed", "count", "gpus"),
    [
        (None, 2, ("0", "1")),
        ("4,6", 2, ("4", "6")),
        ("GPU-ab, GPU-cd", 2, ("GPU-ab", "GPU-cd")),
        ("", 0, ()),
        ("3,99", 1, ("3",)),
    ],
)
def test_a_gpu_is_called_as_the_caller_calls_it(listed, count, gpus) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert callers_gpus(environment, count) == gpus


def test_a_pin_is_an_index_into_the_callers_gpus() -> None:
    pins = [pinned(("4", "6"), worker_number(name)) for name in ("gw0", "gw1", "gw2", "main")]
    assert pins == [("4",), ("6",), ("4",), ("4",)]
    assert pinned((), 3) == ()


HOLDER = """
import sys
from pathlib import Path
from harness.gating.gpus import lease
with lease(sys.argv[2].split(","), int(sys.argv[3]), folder=Path(sys.argv[1])) as mine:
    print(",".join(mine), flush=True)
    sys.stdin.read()
"""


def holder(folder, gpus, number):
    command = [sys.executable, "-c", HOLDER, str(folder), ",".join(gpus), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_no_two_processes_hold_one_gpu_and_who_needs_two_gets_two(tmp_path) -> None:
    gpus = ("4", "6", "7")
    with holder(tmp_path, gpus, 1) as first:
        assert first.stdout.readline() == "4\n"
        with lease(gpus, 2, folder=tmp_path) as mine:
            assert mine == ("6", "7")
            with holder(tmp_path, gpus, 1) as waits:
                first.kill()  # what it held is free, however it ended
                first.wait()
                assert waits.stdout.readline() == "4\n"
                waits.kill()


def test_a_workers_own_gpu_comes_first(tmp_path) -> None:
    with lease(("4", "6"), 1, first=("6",), folder=tmp_path) as mine:
        assert mine == ("6",)


def test_what_is_started_meanwhile_sees_them() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4,6"}
    with visible(("6",), environment):
        assert environment["CUDA_VISIBLE_DEVICES"] == "6"
    assert environment["CUDA_VISIBLE_DEVICES"] == "4,6"
    del environment["CUDA_VISIBLE_DEVICES"]
    with visible((), environment):
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment == {}


def gpu(free):
    return Gpu(token="4", name="NVIDIA H200", free=free * GIB, total=139 * GIB)


def test_a_neighbours_memory_is_a_fault_of_its_own() -> None:
    assert busy([gpu(138)], 2.0) == ""
    assert "59.0 of 139.0 GiB of GPU 4" in busy([gpu(80)], 2.0)


def test_it_is_told_from_a_request_that_failed_too() -> None:
    def report(free, reserved):
        request = FailedRequest(
            thread=ThreadRef(tid=1, name="a", pid=1),
            device="cuda:0",
            free=free * GIB,
            total=139 * GIB,
            reserved=reserved * GIB,
        )
        memory = (Memory(pid=1, requests=(request,)),)
        return Report(verdict="found", exit_code=1, headline="out of memory", memory=memory)

    assert neighbour(report(free=1, reserved=137), 2.0) == ""
    assert "neighbour's memory" in neighbour(report(free=1, reserved=20), 2.0)


def test_waiting_ends_when_it_is_told_to(tmp_path) -> None:
    looked = iter([False, True])
    with (
        lease(("4",), 1, folder=tmp_path),
        pytest.raises(HeldError),
        lease(("4",), 1, folder=tmp_path, give_up=lambda: next(looked)),
    ):
        pass


CONFTEST = """
from harness.gating import pytest_gpus

# What torch would count; nothing here needs a GPU.
pytest_gpus.visible_gpus = lambda: 2
from harness.gating.pytest_gpus import *
from harness.gating.pytest_gpus import gpu_fixture
"""
TESTS = """
import os, subprocess, sys, time
import pytest

AT_IMPORT = os.environ["CUDA_VISIBLE_DEVICES"]

def noted(needs):
    began = time.monotonic()
    # What a test starts sees what is the test's.
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    line = f"{needs} {AT_IMPORT} {seen.strip() or '-'} {began} {time.monotonic()}"
    with open(os.environ["NOTES"], "a") as file:
        file.write(line + chr(10))

@pytest.mark.gpus(1)
@pytest.mark.parametrize("n", range(4))
def test_one(n): noted(1)

@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(2))
def test_two(n): noted(2)

def test_takes_one(gpu): noted(1)

def test_none(): noted(0)

@pytest.mark.gpus(3)
def test_three(): noted(3)
"""


def test_workers_of_pytest_are_pinned_and_no_two_tests_hold_one_gpu(tmp_path, monkeypatch) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(TESTS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "8 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    held: dict[str, list[tuple[float, float]]] = {}
    for line in (tmp_path / "notes").read_text().splitlines():
        needs, at_import, seen, began, ended = line.split()
        assert at_import in {"4", "6"}
        gpus = seen.split(",") if seen != "-" else []
        assert len(gpus) == int(needs)
        assert set(gpus) <= {"4", "6"}
        for one in gpus:
            held.setdefault(one, []).append((float(began), float(ended)))
    for spans in held.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_gpus_that_were_asked_for_have_to_be_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # the scenarios' hooks pin this worker
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    command = [sys.executable, "-m", "pytest", "--compile-race-require-gpu", "3", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 4
    assert "--compile-race-require-gpu 3: only 2 GPUs are visible" in done.stderr


SENSELESS = """
import pytest

@pytest.mark.gpus
def test_none_named(): pass

@pytest.mark.gpus("two")
def test_word(): pass

@pytest.mark.gpus(True)
def test_truth(): pass

@pytest.mark.gpus(-1)
def test_negative(): pass

@pytest.mark.gpus(n=2)
def test_named(): pass

@pytest.mark.gpus(1, 2)
def test_two_numbers(): pass

@pytest.mark.xfail
@pytest.mark.gpus("two")
def test_expected_to_fail(): pass

@pytest.mark.gpus(0)
def test_healthy(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "1"]], ids=["alone", "xdist"])
def test_a_marker_that_makes_no_sense_fails_its_own_test_alone(
    tmp_path, monkeypatch, workers
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(SENSELESS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", *workers, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 7 errors" in done.stdout
    # Each line once where the error is told and once in the summary.
    assert done.stdout.count("gpus takes one number, as in gpus(2)") == 6
    for number in ("'two'", "True", "-1"):
        assert f"gpus: {number} is no number of GPUs" in done.stdout
