"""The cost of a cached call under the watch."""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness.child.settings import VARIABLE, Settings
from harness.supervise.launch import SITE

BUDGET_NS = 200


def test_a_cached_call_costs_at_most_200_ns_more(tmp_path):
    settings = Settings(folder=str(tmp_path), harness="test")
    environment = {**os.environ, VARIABLE: settings.dumps(), "PYTHONPATH": str(SITE)}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hot_path.py"))],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    cost = json.loads(run.stdout)
    print(cost)
    # Two estimates, of which other work on the machine can only raise either.
    assert min(cost["added_ns"], cost["added_paired_median_ns"]) <= BUDGET_NS, cost
