"""A gate over small files, run in this process; what it starts are real processes."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml

from harness.gate import main
from harness.gating.machine import look

HEAD = 'schema = 1\nbaseline = "baseline.toml"\n'


@dataclass
class Ended:
    """How a gate ended and what it left."""

    code: int
    out: Path

    @property
    def gate(self):
        return json.loads((self.out / "gate.json").read_text())

    @property
    def statuses(self):
        """Test or scenario to status."""
        found = {}
        for one in self.gate["judged"]:
            key = one["measured"]["key"]
            found[key["test"] or key["scenario"]] = one["status"]
        return found

    def about(self, name):
        """The judgement of a test or a scenario."""
        for one in self.gate["judged"]:
            key = one["measured"]["key"]
            if name in {key["test"], key["scenario"] if not key["test"] else None}:
                return one
        raise KeyError(name)

    @property
    def junit(self):
        return JUnitXml.fromfile(str(self.out / "junit.xml"))


@pytest.fixture(scope="session")
def minor():
    """``2.13``: the torch version that baselines of these tests are for."""
    return look().minor


@pytest.fixture(autouse=True, scope="module")
def _lean():
    """Pytest's own start is most of what these tests cost, and no CI is told of what is made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
        for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_SHA", "CI_COMMIT_SHA"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def run_gate():
    """Run a gate over a folder that has a ``gate.toml``."""

    def run(folder, *flags, out=None):
        out = out or folder / "out"
        return Ended(main([str(folder / "gate.toml"), "--out", str(out), *flags]), out)

    return run
