"""The built-in target and the features taken from it."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
import torch

from dflash_min.targets.builtin import Target

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def token_ids(rows: int = 2, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


def layer_outputs(target: Target, ids: torch.Tensor) -> list[torch.Tensor]:
    """Every layer's output, caught one model run at a time."""
    outputs: list[torch.Tensor] = []
    handles = [
        layer.register_forward_hook(lambda _layer, _args, out: outputs.append(out))
        for layer in target.layers
    ]
    target(ids)
    for handle in handles:
        handle.remove()
    return outputs


@pytest.mark.parametrize(
    ("layers", "taps"),
    [
        (24, (1, 6, 11, 16, 21)),
        (28, (1, 7, 13, 19, 25)),
        (32, (1, 8, 15, 22, 29)),
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (48, (1, 12, 23, 34, 45)),
        (64, (1, 16, 31, 46, 61)),
    ],
)
def test_taps_of_the_published_models(small_config, layers, taps) -> None:
    config = dataclasses.replace(small_config, layers=5, target_layers=layers)
    assert config.taps == taps


def test_one_drafter_layer_taps_the_middle_and_named_taps_win(small_config) -> None:
    assert dataclasses.replace(small_config, layers=1, target_layers=7).taps == (3,)
    assert dataclasses.replace(small_config, target_layer_ids=(0, 2, 5)).taps == (0, 2, 5)


@pytest.mark.parametrize("taps", [(), (0, 2, 5), (4, 1)])
def test_features_are_the_tapped_layers_outputs_not_their_neighbours(small_config, taps) -> None:
    config = dataclasses.replace(small_config, target_layer_ids=taps)
    target, ids = Target(config), token_ids()
    features = target.features(ids)
    outputs = layer_outputs(target, ids)
    assert len(outputs) == config.target_layers
    for tap, part in zip(config.taps, features.chunk(len(config.taps), dim=-1), strict=True):
        equal = [layer for layer, output in enumerate(outputs) if torch.equal(part, output)]
        assert equal == [tap]


def test_layers_after_the_last_tap_and_the_head_are_not_run(small_config) -> None:
    target = Target(small_config)
    ran: list[str] = []
    for name, module in target.named_modules():
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
    target.features(token_ids())
    last = max(small_config.taps)
    assert f"layers.{last}" in ran
    assert not {f"layers.{last + 1}", "norm", "lm_head"} & set(ran)


def test_features_can_be_used_in_a_backward_and_lead_back_nowhere(small_config) -> None:
    target = Target(small_config).requires_grad_()
    features = target.features(token_ids())
    assert not features.requires_grad
    weight = torch.ones(features.shape[-1], requires_grad=True)
    (features * weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


def test_the_target_is_frozen_and_its_weights_come_from_the_seed(small_config) -> None:
    torch.manual_seed(1)
    target = Target(small_config, seed=4)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    again, other = Target(small_config, seed=4), Target(small_config, seed=5)
    assert not target.training
    assert not any(parameter.requires_grad for parameter in target.parameters())
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        if not name.endswith("norm.weight"):
            assert not torch.equal(tensor, other.state_dict()[name])
    torch.manual_seed(1)
    Target(small_config, seed=6)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_token_sees_a_later_one(small_config) -> None:
    target, ids = Target(small_config), token_ids(length=12)
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 60
    before, after = target.features(ids), target.features(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).all(dim=-1).any()
    torch.testing.assert_close(target(ids)[:, :7], target(changed)[:, :7])


def test_threads_that_share_a_target_get_their_own_features(small_config) -> None:
    target = Target(small_config)
    batches = [token_ids(seed=seed) for seed in range(2)]
    alone = [target.features(ids) for ids in batches]
    both = threading.Barrier(2, timeout=60)

    def meet(*_: object) -> None:
        both.wait()  # both threads are at the same tapped layer before either goes on

    for tap in small_config.taps:
        target.layers[tap].register_forward_pre_hook(meet)
    found: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        found[index] = target.features(batches[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        torch.testing.assert_close(found[index], alone[index])


def test_a_copy_of_a_target_captures_for_itself(small_config) -> None:
    target = Target(small_config)
    twin = copy.deepcopy(target)
    assert torch.equal(twin.features(token_ids()), target.features(token_ids()))


def test_a_tap_beyond_the_target_is_refused(small_config) -> None:
    config = dataclasses.replace(small_config, target_layer_ids=(1, 6))
    with pytest.raises(ValueError, match=r"taps \[6\]"):
        Target(config)


@pytest.mark.parametrize("lengths", [[9], [1] * 9, [4, 5], [1, 7, 1], [6, 1, 1, 1]])
def test_tokens_in_any_portions_have_the_whole_texts_logits_and_features(
    small_config, lengths
) -> None:
    target, ids = Target(small_config), token_ids()
    with torch.no_grad():
        logits, features = target.lm_head(target(ids)), target.features(ids)
    cache = target.cache(2)
    parts = [target.extend(portion, cache) for portion in ids.split(lengths, dim=1)]
    torch.testing.assert_close(torch.cat([part for part, _ in parts], dim=1), logits)
    torch.testing.assert_close(torch.cat([part for _, part in parts], dim=1), features)
    assert cache.length == 9


def test_after_a_crop_the_text_goes_on_as_if_the_rest_had_not_been(small_config) -> None:
    target, ids = Target(small_config), token_ids()
    cache = target.cache(2)
    target.extend(ids[:, :5], cache)
    target.extend(token_ids(length=6, seed=1), cache)
    cache.crop(5)
    logits, features = target.extend(ids[:, 5:], cache)
    with torch.no_grad():
        torch.testing.assert_close(logits, target.lm_head(target(ids))[:, 5:])
    torch.testing.assert_close(features, target.features(ids)[:, 5:])


def test_a_forward_that_fails_leaves_the_cache_as_it_was(small_config) -> None:
    target, ids = Target(small_config), token_ids()
    cache = target.cache(2)
    target.extend(ids[:, :5], cache)

    def fail(*_: object) -> None:
        raise RuntimeError

    handle = target.layers[3].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError):
        target.extend(token_ids(length=3, seed=1), cache)
    handle.remove()
    assert cache.length == 5
    torch.testing.assert_close(target.extend(ids[:, 5:], cache)[1], target.features(ids)[:, 5:])


def test_logits_are_float32_in_any_dtype_and_carry_no_gradients(small_config) -> None:
    target = Target(small_config).requires_grad_().bfloat16()
    logits, features = target.extend(token_ids(), target.cache(2))
    assert (logits.dtype, features.dtype) == (torch.float32, torch.bfloat16)
    assert not logits.requires_grad
    assert not features.requires_grad


def test_a_foreign_cache_is_refused(small_config) -> None:
    with pytest.raises(TypeError, match="list is no cache"):
        Target(small_config).extend(token_ids(), [])
