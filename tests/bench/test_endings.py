"""A sample of the runs of ``endings.py``: killed at random moments, and nothing is lost."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_killed_at_random_moments_every_run_is_reported_and_nothing_is_lost():
    command = [sys.executable, str(Path(__file__).with_name("endings.py"))]
    done = subprocess.run(
        [*command, "--light", "12", "--trainer", "1", "--window", "8", "--seed", "20", "-j", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "13/13 right" in done.stdout
