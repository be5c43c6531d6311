"""Healthy programs that know nothing of the harness: none may give a finding.

A sample of ``tests/healthy``; ``python tests/bench/reliability.py --healthy`` runs all of them.
"""

import json
from pathlib import Path

import pytest

from harness import watch

HEALTHY = Path(__file__).parent / "healthy"
SAMPLE = {
    "h04_inference_pool": "matching contexts",
    "h10_dataloader_spawn": "processes",
    "h15_torch_func": "a callable that torch defines",
    "h22_asyncio_to_thread": "threads that change",
    "h24_lock_around_the_compile": "cold threads",
    "h29_disable_and_stance_by_the_main_thread": "eager on purpose",
}
# Of these ``tests/cases`` has a healthy relative, or another of the sample is one.
DEEPER = {"h04_inference_pool", "h15_torch_func", "h22_asyncio_to_thread"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in DEEPER else ()) for name in SAMPLE],
)
def test_a_healthy_program_is_clean(name, tmp_path, monkeypatch) -> None:
    # In each fresh cache torch tries what the compiler can do: no subject of these programs.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    words = ("--out", str(tmp_path), "--timeout", "120", "--", str(HEALTHY / f"{name}.py"))
    code = watch.main(words)
    (saved,) = tmp_path.glob("*/report.json")
    report = json.loads(saved.read_text())
    assert (report["verdict"], report["findings"]) == ("clean", []), report["headline"]
    assert code == report["ended"]["exit_code"] == 0
    assert report["counts"]["threads_with_compiled_calls"] > 0
    assert report["not_watched"] == []


def test_there_are_as_many_as_are_spoken_of() -> None:
    assert len(list(HEALTHY.glob("*.py"))) >= 30
