"""Which torch is supported."""

import tomllib
from pathlib import Path

import pytest

from dflash_min import versions
from dflash_min.errors import UsageError

ROOT = Path(__file__).parents[2]


def test_the_range_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        line for line in project["optional-dependencies"]["train"] if line.startswith("torch")
    )
    low, high = (".".join(map(str, v)) for v in (versions.TORCH_FROM, versions.TORCH_BELOW))
    assert wanted == f"torch>={low},<{high}"


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.9"])
def test_supported(version) -> None:
    versions.check_torch_version(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0a0+git1", "3.0", "source"])
def test_unsupported(version) -> None:
    with pytest.raises(UsageError) as refused:
        versions.check_torch_version(version, "/a/python")
    assert str(refused.value) == f"torch {version} is not supported; 2.11 to 2.15 is (/a/python)"


def test_none() -> None:
    with pytest.raises(UsageError, match=r"^this Python has no torch; 2\.11 to 2\.15 is needed$"):
        versions.check_torch_version("")
