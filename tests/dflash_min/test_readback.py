"""Numbers on their way to the host."""

from __future__ import annotations

import pytest
import torch

from dflash_min.readback import Readback


def test_what_is_changed_later_does_not_change_what_was_read() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    found = Readback(values)
    with torch.no_grad():
        values.zero_()
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_work_that_was_given_later_is_not_waited_for() -> None:
    values, matrix = torch.ones(3, device="cuda"), torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    found = Readback(values)
    values.zero_()
    for _ in range(100):
        matrix @ matrix
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert not torch.cuda.current_stream().query()
