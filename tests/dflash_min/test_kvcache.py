"""Keys and values of the tokens seen so far."""

from __future__ import annotations

import pytest
import torch

from dflash_min.targets.kvcache import KVCache, causal_mask


def states(length: int, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, 2, length, 3)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def fill(cache: KVCache, keys: torch.Tensor, values: torch.Tensor, layers: int = 2) -> None:
    for layer in range(layers):
        cache.store(layer, keys, values)
    cache.advance(keys.shape[2])


def test_what_was_stored_is_read_back_across_every_growth_of_the_buffers() -> None:
    cache, (keys, values) = KVCache(layers=2, batch=1), states(300)
    at = 0
    for length in (1, 62, 1, 1, 100, 135):
        part = slice(at, at + length)
        for layer in range(2):
            got = cache.store(layer, keys[:, :, part], values[:, :, part])
            assert torch.equal(got[0], keys[:, :, : at + length])
            assert torch.equal(got[1], values[:, :, : at + length])
        cache.advance(length)
        at += length
    assert cache.length == 300
    assert torch.equal(cache.read(1)[0], keys)


def test_a_growth_copies_no_more_often_than_doubling_does() -> None:
    cache, (key, value) = KVCache(layers=1, batch=1), states(1)
    buffers = set()
    for _ in range(1000):
        buffers.add(cache.store(0, key, value)[0].data_ptr())
        cache.advance(1)
    assert len(buffers) <= 5  # 64, 128, 256, 512, 1024


def test_what_is_cropped_is_written_over() -> None:
    cache = KVCache(layers=2, batch=1)
    first, second = states(10), states(3, seed=1)
    fill(cache, *first)
    cache.crop(4)
    assert cache.length == 4
    fill(cache, *second)
    expected = torch.cat([first[0][:, :, :4], second[0]], dim=2)
    assert torch.equal(cache.read(0)[0], expected)


def test_what_is_stored_and_not_counted_in_is_as_if_it_had_not_been() -> None:
    cache, first = KVCache(layers=2, batch=1), states(5)
    fill(cache, *first)
    cache.store(0, *states(7, seed=1))  # the forward failed after its first layer
    assert cache.length == 5
    assert torch.equal(cache.read(0)[0], first[0])


@pytest.mark.parametrize("length", [-1, 4])
def test_a_crop_to_what_is_not_there_is_refused(length) -> None:
    cache = KVCache(layers=1, batch=1)
    fill(cache, *states(3), layers=1)
    with pytest.raises(ValueError, match=f"3 cached tokens to {length}"):
        cache.crop(length)


def test_another_number_of_sequences_and_an_empty_layer_are_refused() -> None:
    cache = KVCache(layers=2, batch=2)
    with pytest.raises(ValueError, match="1 sequences for a cache of 2"):
        cache.store(0, *states(3))
    with pytest.raises(ValueError, match="layer 1"):
        cache.read(1)


def test_new_queries_see_all_before_them_and_themselves() -> None:
    mask = causal_mask(3, 5, torch.device("cpu"))
    assert mask.tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]
    assert causal_mask(1, 5, torch.device("cpu")) is None
