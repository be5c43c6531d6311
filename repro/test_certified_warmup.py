"""A warm-up that is proved, and one that is not: ``harness.certify`` on the same program.

What a program's threads call has to be found in the caches under schedules, too, and by asking
each cache entry in each thread, which compiles nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "programs" / "warmed_threads.py")


def certify(out, *words):
    done = subprocess.run(
        [sys.executable, "-m", "harness.certify", "-j", "2", "--out", str(out), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    saved = list(out.glob("*/certificate.json"))
    assert len(saved) == 1, done.stderr[-4000:]
    return done.returncode, json.loads(saved[0].read_text())


@pytest.fixture(scope="module")
def applied(tmp_path_factory):
    out = tmp_path_factory.mktemp("applied")
    return certify(out, "--explore", "1", "--apply", "--", PROGRAM, "no_grad")


def test_certified_warmup_fails(applied):
    before = applied[1]
    assert before["verdict"] == "found"
    assert before["tested"][0]["roots"] == ["CR101"]
    missed = [cell for cell in before["coverage"] if cell["missed"]]
    assert missed
    # What the thread was about to do the entries had said before.
    assert all("grad_mode" in cell["guards"][0] for cell in missed)
    assert not any(cell["disagreed"] for cell in before["coverage"])


def test_certified_warmup_fix_is_the_code_that_it_prints(applied):
    code, before = applied
    assert "    out = loss(" in "\n".join(before["suggestion"]["lines"])
    after = before["after"]
    assert (code, after["verdict"]) == (0, "clean")
    assert {run["kind"] for run in after["tested"]} == {"clean"}
    called = [cell for cell in after["coverage"] if cell["hit"]]
    assert len(called) == 2
    assert not any(cell["missed"] or cell["rejected"] for cell in called)
    assert not any(cell["disagreed"] for cell in after["coverage"])


@pytest.mark.slow
def test_certified_warmup_control_with_gradients_is_clean(tmp_path):
    code, certificate = certify(tmp_path, "--explore", "1", "--", PROGRAM, "grad")
    assert (code, certificate["verdict"]) == (0, "clean")
    assert [run["what"] for run in certificate["tested"]] == [
        "as it likes",
        "control",
        "exploration",
    ]
    assert sum(run["compiles_after_warmup"] for run in certificate["tested"]) == 0
    assert {plan["name"] for plan in certificate["not_run"]} >= {"stampede", "is-compiling"}
