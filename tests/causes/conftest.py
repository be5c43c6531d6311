"""Fixtures of the rule tests."""

import pytest

from .build import Script


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path / "run")
