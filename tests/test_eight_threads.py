"""The trainer with five targets and three drafters under the watch: verdict, threads, counts."""

import json
import subprocess
import sys

import pytest

NAMES = {
    **{f"target-{i}": "other" for i in range(5)},
    **{f"drafter-{i}": "workload" for i in range(3)},
}


@pytest.mark.parametrize(
    ("warmup", "code", "roots"),
    [("no_grad", 1, ["CR101"]), pytest.param("grad", 0, [], marks=pytest.mark.slow)],
)
def test_five_targets_and_three_drafters(warmup, code, roots, tmp_path) -> None:
    words = f"--layout 5+3 --threads 3 --device cpu --steps 2 --warmup {warmup} --json --out"
    done = subprocess.run(
        [sys.executable, "-m", "harness.run", *words.split(), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["verdict"] == ("found" if roots else "clean")
    assert [finding["code"] for finding in report["findings"] if finding["root"]] == roots
    threads = {of["thread"]["name"]: of for of in report["threads"]}
    # Targets call nothing compiled: they are listed, not judged.
    assert {name: threads[name]["role"] for name in NAMES} == NAMES
    assert {threads[name]["created_by"]["name"] for name in NAMES} == {"MainThread"}
    # The warm-up calls it in the main thread; a thread that dies of a race does not come to it.
    if not report["errors"]:
        assert report["counts"]["threads_with_backward"] == 3 + (warmup == "grad")
    assert bool(report["counts"]["compiles_after_warmup"]) == bool(roots)
    assert report["counts"]["fallbacks"] == 0
    (page,) = tmp_path.glob("*/report.md")
    said = page.read_text(encoding="utf-8")
    assert [name for name, role in NAMES.items() if f"### {name} ({role}, tid " not in said] == []
