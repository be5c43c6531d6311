"""The learning rate over the steps."""

from __future__ import annotations

import pytest

from dflash_min.lr import lr_share, rise_and_fall


def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing():
    shares = [lr_share(step, 100, 0.04) for step in range(100)]
    assert shares[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert shares[52] == pytest.approx(0.5)
    assert 0 < shares[-1] < 1e-3
    assert lr_share(0, 1, 0.0) == lr_share(0, 1, 0.04) == lr_share(0, 1, 1.0) == 1.0


def test_the_share_of_steps_and_that_of_a_whole_are_one_curve():
    for done in range(5, 100):
        assert rise_and_fall(done / 100, 0.05) == pytest.approx(lr_share(done, 100, 0.05))
    assert [rise_and_fall(done, 0.5) for done in (0.0, 0.25, 0.5)] == [0.0, 0.5, 1.0]
    assert rise_and_fall(0.0, 0.0) == 1.0
