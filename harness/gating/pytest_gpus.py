"""Hooks for a conftest.py: each test has its GPUs for itself, pytest-xdist's workers are pinned.

A test marked ``gpus(n)`` gets n GPUs or is skipped; one that uses the fixture ``gpu`` gets one
where there is one; all others see none. No two tests hold one GPU, of whatever process of the
user's. What a test sees is set before torch is imported in what it starts; this process's own
torch, where a test imports it, sees the worker's pin.
"""

import os
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest

from harness.child.versions import torch_version
from harness.gating.gpus import LEASED, VISIBLE, callers_gpus, lease, pinned, visible, worker_number

_REQUIRE = "--compile-race-require-gpu"
_HANDED_OVER = "compile_race_gpus"
_GPUS = pytest.StashKey[tuple[str, ...]]()


def visible_gpus() -> int:
    """GPUs that torch sees, counted without initialising CUDA; a CPU build is not asked."""
    if os.environ.get(VISIBLE) == "" or not torch_version()[1]:
        return 0
    import torch

    return torch.cuda.device_count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that a GPU runner needs."""
    parser.addoption(
        _REQUIRE,
        type=int,
        default=0,
        metavar="N",
        help="fail unless N GPUs are visible; scenarios that need at most N GPUs must then run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, pin a worker, and refuse to start without the GPUs asked for."""
    config.addinivalue_line("markers", "gpus(n): the scenario needs n GPUs")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        gpus = tuple(worker[_HANDED_OVER])
        config.stash[_GPUS] = gpus
        os.environ[VISIBLE] = ",".join(pinned(gpus, worker_number(worker["workerid"])))
        return
    required = config.getoption(_REQUIRE)
    if required and (there := len(gpus_of(config))) < required:
        raise pytest.UsageError(f"{_REQUIRE} {required}: only {there} GPUs are visible")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - pytest-xdist's, if installed
    """Tell a worker which GPUs there are, which a pinned process does not see."""
    node.workerinput[_HANDED_OVER] = list(gpus_of(node.config))


@pytest.fixture(name="gpu")
def gpu_fixture() -> int:
    """The test takes a GPU where there is one; returns how many it has."""
    return visible_gpus()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hold the test's GPUs from its setup to its teardown; waiting is no time of the test's."""
    gpus = gpus_of(item.config)
    try:
        number = needed(item, len(gpus))
    except pytest.UsageError:  # the test's setup says so
        return (yield)
    if not gpus or number > len(gpus):
        return (yield)
    held_already = os.environ.get(LEASED) is not None
    first = () if held_already else os.environ.get(VISIBLE, "").split(",")
    holding = nullcontext(gpus[:number]) if held_already else lease(gpus, number, first)
    with holding as mine, visible(mine, os.environ):
        return (yield)


# First, since a failure that comes after pytest has seen ``xfail`` counts as an expected one.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a scenario that needs more GPUs than there are, or than were required.

    One whose marker makes no sense fails, and no other one with it.
    """
    there = len(gpus_of(item.config))
    available = item.config.getoption(_REQUIRE) or there
    try:
        number = needed(item, there)
    except pytest.UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    if number > available:
        pytest.skip(f"needs {number} GPUs, {available} are available")


def needed(item: pytest.Item, there: int) -> int:
    """How many GPUs a test takes, of so many.

    Raises:
        pytest.UsageError: its marker makes no sense; one line that says why.
    """
    marker = item.get_closest_marker("gpus")
    if marker is not None:
        if len(marker.args) != 1 or marker.kwargs:
            raise pytest.UsageError("gpus takes one number, as in gpus(2)")
        number = marker.args[0]
        if type(number) is not int or number < 0:
            raise pytest.UsageError(f"gpus: {number!r} is no number of GPUs")
        return number
    return min(1, there) if "gpu" in getattr(item, "fixturenames", ()) else 0


def gpus_of(config: pytest.Config) -> tuple[str, ...]:
    """The GPUs that the caller of pytest sees, as CUDA_VISIBLE_DEVICES names them."""
    if _GPUS not in config.stash:
        config.stash[_GPUS] = callers_gpus(os.environ, visible_gpus())
    return config.stash[_GPUS]
