"""Anchors, inputs, positions, labels and weights, against plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_min import blocks


def sampler(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


loss_masks = st.integers(1, 20).flatmap(
    lambda length: st.lists(
        st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=3
    )
)


@settings(max_examples=100, deadline=None)
@given(loss_masks, st.integers(1, 12), st.integers(0, 2**32))
def test_anchors_are_distinct_candidates_in_order_then_padding(rows, count, seed) -> None:
    anchors, keep = blocks.sample_anchors(torch.tensor(rows), count, sampler(seed))
    assert anchors.shape == keep.shape == (len(rows), count)
    assert anchors.dtype == torch.int64
    for row, row_anchors, row_keep in zip(rows, anchors.tolist(), keep.tolist(), strict=True):
        candidates = [t for t in range(len(row) - 1) if row[t] and row[t + 1]]
        kept = [anchor for anchor, good in zip(row_anchors, row_keep, strict=True) if good]
        assert len(kept) == min(count, len(candidates))
        assert set(kept) <= set(candidates)
        assert row_anchors == sorted(row_anchors)
        assert kept == sorted(set(kept)) == row_anchors[: len(kept)]
        assert set(row_anchors[len(kept) :]) <= {len(row) - 1}


def test_every_candidate_is_drawn_equally_often() -> None:
    loss_mask = torch.ones(4000, 9, dtype=torch.bool)
    loss_mask[:, 3] = False
    anchors, keep = blocks.sample_anchors(loss_mask, 2, sampler())
    assert keep.all()
    counts = anchors.flatten().bincount(minlength=9).tolist()
    assert [position for position, times in enumerate(counts) if times] == [0, 1, 4, 5, 6, 7]
    # 8,000 draws over six candidates: 1,333 each, with a standard deviation below 34.
    assert all(abs(times - 8000 / 6) < 5 * 34 for times in counts if times)


def test_a_seed_gives_the_same_anchors_and_another_seed_gives_others() -> None:
    loss_mask = torch.ones(2, 200, dtype=torch.bool)
    first, again, other = (
        blocks.sample_anchors(loss_mask, 16, sampler(seed))[0] for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_anchor_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one anchor"):
        blocks.sample_anchors(torch.ones(1, 8, dtype=torch.bool), 0, sampler())


def test_block_inputs_are_the_anchor_and_mask_tokens() -> None:
    ids = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]])
    anchors = torch.tensor([[0, 3], [2, 2]])
    assert blocks.block_inputs(ids, anchors, 3, 99).tolist() == [
        [10, 99, 99, 13, 99, 99],
        [22, 99, 99, 22, 99, 99],
    ]


def test_positions_count_the_context_and_then_from_each_anchor() -> None:
    anchors = torch.tensor([[0, 3], [2, 2]])
    assert blocks.positions(4, anchors, 3).tolist() == [
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 2, 3, 4, 2, 3, 4],
    ]


@st.composite
def batches(draw):
    rows, length = draw(st.integers(1, 2)), draw(st.integers(1, 12))
    count, slots = draw(st.integers(1, 4)), draw(st.integers(2, 6))

    def grid(element, width):
        row = st.lists(element, min_size=width, max_size=width)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    return (
        grid(st.integers(0, 50), length),
        grid(st.booleans(), length),
        grid(st.integers(0, length - 1), count),
        grid(st.booleans(), count),
        slots,
        draw(st.floats(0.5, 9.0)),
    )


@settings(max_examples=100, deadline=None)
@given(batches())
def test_labels_and_weights_equal_plain_loops(batch) -> None:
    ids, loss_mask, anchors, keep, slots, gamma = batch
    labels, weights = blocks.targets(
        *map(torch.tensor, (ids, loss_mask, anchors, keep)), slots, gamma
    )
    assert labels.shape == weights.shape == (len(ids), len(anchors[0]) * slots)
    assert weights.dtype == torch.float32
    for row in range(len(ids)):
        for block, anchor in enumerate(anchors[row]):
            for k in range(slots):
                position, q = anchor + k, block * slots + k
                counts = (
                    k > 0
                    and keep[row][block]
                    and position < len(ids[row])
                    and loss_mask[row][position]
                )
                expected = math.exp(-(k - 1) / gamma) if counts else 0.0
                assert weights[row, q].item() == pytest.approx(expected, rel=1e-6)
                if counts:
                    assert labels[row, q].item() == ids[row][position]
                assert 0 <= labels[row, q].item() <= 50


@pytest.mark.parametrize(
    ("block_size", "gamma", "last"), [(16, 7, 0.135), (10, 5, 0.202), (8, 4, 0.223)]
)
def test_decay_of_the_published_block_sizes(block_size, gamma, last) -> None:
    assert blocks.decay_gamma(block_size) == gamma
    ids = torch.zeros(1, 40, dtype=torch.int64)
    everything = torch.ones(1, 40, dtype=torch.bool)
    one = torch.zeros(1, 1, dtype=torch.int64)
    weights = blocks.targets(ids, everything, one, one == 0, block_size, gamma)[1][0]
    assert weights[:2].tolist() == [0, 1]
    assert weights[-1].item() == pytest.approx(last, abs=5e-4)


def test_decay_grows_with_the_block_and_needs_a_slot_to_predict() -> None:
    gammas = [blocks.decay_gamma(size) for size in range(2, 40)]
    steps = [after - before for before, after in itertools.pairwise(gammas)]
    assert all(1 / 3 - 1e-9 <= step <= 1 / 2 for step in steps)
    with pytest.raises(ValueError, match="at least 2 slots"):
        blocks.decay_gamma(1)
