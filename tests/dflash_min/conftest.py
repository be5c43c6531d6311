"""Fixtures that several test modules of the trainer share."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import torch
from torch._dynamo.utils import counters

from dflash_min import stopping
from dflash_min.config import ModelConfig

from .trainers import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: runs on a CUDA device, and is skipped without one")


@pytest.fixture(autouse=True)
def signals_are_usual() -> Iterator[None]:
    """As where a program starts in the foreground, for the programs too that a test starts.

    Under nohup SIGHUP is ignored, and SIGINT in what a script's `&` starts.
    """
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    for number in stopping.SIGNALS:
        usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Small tensors on busy cores: with several OpenMP threads they take ten times as long.

    Not for tests that call compiled code from several threads: new threads keep the default, and
    dynamo guards on the number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads_end() -> Iterator[None]:
    """No thread of a trainer outlives the test, and the number of torch's threads is what it was.

    A trainer that runs sets it.
    """
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    assert workers() == []


@pytest.fixture
def compiled_graphs() -> Iterator[Callable[[], int]]:
    """Start from empty caches and dynamo's usual settings; count the graphs compiled since.

    Up to torch 2.11 they are one for the process, and another test's threads, which called at the
    same time, can have left those behind that stand for ``dynamic=True`` (CR305).
    """
    usual = {"assume_static_by_default": True, "automatic_dynamic_shapes": True}
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(usual):
        yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.fixture
def small_config() -> ModelConfig:
    """Two drafter layers reading two of six target layers; two query heads a key head."""
    return ModelConfig(
        hidden=32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        mlp=48,
        layers=2,
        target_layers=6,
        block_size=4,
        vocab=64,
        mask_token_id=63,
    )
