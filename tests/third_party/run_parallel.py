"""Tests of compiled functions that pytest-run-parallel runs in several threads at once."""

import pytest
import torch

scale = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
layer = torch.nn.Linear(4, 4)
compiled = torch.compile(layer, backend="aot_eager")
scale(torch.ones(4))
compiled(torch.ones(2, 4)).sum().backward()


def test_values():
    assert torch.equal(scale(torch.ones(4)), torch.full((4,), 3.0))


def test_gradients():
    x = torch.ones(2, 4)
    compiled(x).sum().backward()
    assert layer.bias.grad is not None


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_against_eager(value):
    x = torch.full((2, 4), value)
    torch.testing.assert_close(compiled(x), layer(x))
