"""The drafter against an independent reference, and training against drafting."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from dflash_min import blocks
from dflash_min.attention import attend_dense, dense_mask
from dflash_min.model import Drafter
from dflash_min.qwen3 import RMSNorm, rotary_angles, rotate
from dflash_min.targets.builtin import Target

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_min.config import ModelConfig

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CONTEXT, ANCHORS = 14, [[2, 5, 6, 11], [1, 3, 9, 12]]  # overlapping blocks, and one over the end


class Batch:
    """Text with anchors, as the trainer gives it to a drafter."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(7)
        self.config = config
        self.target = Target(config, seed=1).to(dtype)
        drafter = Drafter(config, seed=2)
        with torch.no_grad():  # norms of all ones would hide which norm is applied where
            for name, weight in drafter.named_parameters():
                if name.endswith("norm.weight"):
                    weight.uniform_(0.5, 1.5, generator=generator)
        self.drafter = drafter.to(dtype)
        self.ids = torch.randint(0, 60, (2, CONTEXT), generator=generator)
        self.anchors = torch.tensor(ANCHORS)
        self.keep = torch.ones_like(self.anchors, dtype=torch.bool)
        self.features = self.target.features(self.ids)

    @property
    def embeds(self) -> Tensor:
        ids = blocks.block_inputs(
            self.ids, self.anchors, self.config.block_size, self.config.mask_token_id
        )
        return self.target.embed_tokens(ids)

    def train(self, embeds: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """Return hidden_BNKD of all blocks at once."""
        slots = self.config.block_size
        mask = dense_mask(self.anchors, self.keep, CONTEXT, slots)
        hidden = self.drafter(
            self.embeds if embeds is None else embeds,
            self.features if features is None else features,
            blocks.positions(CONTEXT, self.anchors, slots),
            lambda q, k, v: attend_dense(q, k, v, mask),
        )
        return hidden.unflatten(1, (-1, slots))


@pytest.fixture
def batch(small_config) -> Batch:
    return Batch(small_config)


def test_state_dict_has_the_published_names_and_nothing_else(small_config) -> None:
    layer = [
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    ]
    names = {f"layers.{index}.{name}" for index in range(2) for name in layer}
    names |= {"fc.weight", "hidden_norm.weight", "norm.weight"}
    state = Drafter(small_config).state_dict()
    assert set(state) == names
    assert state["fc.weight"].shape == (32, 2 * 32)
    assert state["layers.1.self_attn.k_proj.weight"].shape == (2 * 8, 32)
    assert state["layers.1.self_attn.q_norm.weight"].shape == (8,)


def reference_block(batch: Batch, row: int, block: int) -> Tensor:
    """One block, slot by slot and head by head, from the published formulas alone."""
    config, weights = batch.config, batch.drafter.state_dict()
    anchor = ANCHORS[row][block]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.rms_eps).sqrt() * weights[name]

    def rope(x: Tensor, position: int) -> Tensor:
        half = config.head_dim // 2
        out = x.clone()
        for i in range(half):
            angle = torch.tensor(position * config.rope_theta ** (-i / half))
            out[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
            out[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
        return out

    context = norm(batch.features[row, :anchor] @ weights["fc.weight"].T, "hidden_norm.weight")
    slots = config.block_size
    hidden = batch.embeds[row, block * slots : (block + 1) * slots]
    for index in range(config.layers):
        name = f"layers.{index}."
        normed = norm(hidden, name + "input_layernorm.weight")
        source = torch.cat([context, normed])
        places = [*range(anchor), *range(anchor, anchor + slots)]

        def heads(x: Tensor, which: str, name: str = name) -> Tensor:
            projected = x @ weights[f"{name}self_attn.{which}_proj.weight"].T
            return projected.view(len(x), -1, config.head_dim)

        query = norm(heads(normed, "q"), name + "self_attn.q_norm.weight")
        key = norm(heads(source, "k"), name + "self_attn.k_norm.weight")
        value = heads(source, "v")
        out = torch.zeros(slots, config.heads, config.head_dim, dtype=hidden.dtype)
        for slot in range(slots):
            for head in range(config.heads):
                shared = head // (config.heads // config.kv_heads)
                q = rope(query[slot, head], anchor + slot)
                keys = torch.stack([rope(key[j, shared], place) for j, place in enumerate(places)])
                share = (keys @ q / config.head_dim**0.5).softmax(0)
                out[slot, head] = share @ value[:, shared]
        hidden = hidden + out.flatten(1) @ weights[name + "self_attn.o_proj.weight"].T
        normed = norm(hidden, name + "post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(normed @ weights[name + "mlp.gate_proj.weight"].T)
        up = normed @ weights[name + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * up) @ weights[name + "mlp.down_proj.weight"].T
    return norm(hidden, "norm.weight")


# Norms and rotary angles are computed in float32 even where everything else is double precision.
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def test_training_forward_equals_the_published_formulas(batch) -> None:
    hidden = batch.train()
    for row, block in ((0, 0), (0, 2), (1, 1), (1, 3)):
        torch.testing.assert_close(
            hidden[row, block], reference_block(batch, row, block), **ROUNDING
        )


def test_training_forward_of_each_anchor_equals_its_draft_with_cached_context(batch) -> None:
    hidden, slots = batch.train(), batch.config.block_size
    for row, anchors in enumerate(ANCHORS):
        for block, anchor in enumerate(anchors):
            features = batch.features[row : row + 1, :anchor]
            cache = batch.drafter.context_cache(features, torch.arange(anchor)[None])
            embeds = batch.embeds[row : row + 1, block * slots : (block + 1) * slots]
            drafted = batch.drafter.draft(embeds, cache, torch.arange(anchor, anchor + slots)[None])
            torch.testing.assert_close(hidden[row, block], drafted[0], **ROUNDING)


def test_a_cache_can_grow_by_the_tokens_that_were_accepted(batch) -> None:
    features, places = batch.features[:, :10], torch.arange(10).expand(2, -1)
    whole = batch.drafter.context_cache(features, places)
    first = batch.drafter.context_cache(features[:, :6], places[:, :6])
    rest = batch.drafter.context_cache(features[:, 6:], places[:, 6:])
    for layer, (key, value) in enumerate(whole):
        for kind, tensor in enumerate((key, value)):
            grown = torch.cat([first[layer][kind], rest[layer][kind]], dim=2)
            torch.testing.assert_close(grown, tensor, **ROUNDING)


def test_overlapping_blocks_leak_neither_later_features_nor_each_other(batch) -> None:
    before = batch.train()
    for block in range(4):
        features, embeds = batch.features.clone(), batch.embeds.clone()
        own = slice(block * batch.config.block_size, (block + 1) * batch.config.block_size)
        for row, anchors in enumerate(ANCHORS):
            features[row, anchors[block] :] += 3.0  # the anchor's own feature included
        kept = embeds[:, own].clone()
        embeds += 3.0
        embeds[:, own] = kept
        after = batch.train(embeds, features)
        assert torch.equal(after[:, block], before[:, block])
        assert not torch.isclose(after, before).all(dim=-1)[:, torch.arange(4) != block].any()
        # The feature just before the anchor is seen, by every slot.
        for row, anchors in enumerate(ANCHORS):
            features[row, anchors[block] - 1] += 3.0
        seen = batch.train(embeds, features)
        assert not torch.isclose(seen[:, block], before[:, block]).all(dim=-1).any()


def test_future_tokens_do_not_change_a_block(batch) -> None:
    # Through the target too: what a block sees is made of the tokens up to its anchor.
    before, anchor = batch.train()[0, 1], ANCHORS[0][1]
    batch.ids[0, anchor + 1 :] = (batch.ids[0, anchor + 1 :] + 1) % 60
    batch.features = batch.target.features(batch.ids)
    torch.testing.assert_close(batch.train()[0, 1], before, rtol=0, atol=1e-12)


def test_checkpointed_layers_have_the_same_output_and_gradients(small_config) -> None:
    results = []
    for checkpoint_layers in (False, True):
        batch = Batch(small_config)
        batch.drafter.checkpoint_layers = checkpoint_layers
        runs = []
        # Before the layer, since a recomputation ends as soon as it has made what it must.
        batch.drafter.layers[0].register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        hidden = batch.train()
        hidden.square().sum().backward()
        assert len(runs) == 1 + checkpoint_layers
        grads = [parameter.grad for parameter in batch.drafter.parameters()]
        assert all(grad is not None and grad.abs().max() > 0 for grad in grads)
        results.append([hidden.detach(), *grads])
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(plain, checkpointed)


def test_padded_blocks_leave_gradients_finite_and_other_blocks_alone(batch) -> None:
    before = batch.train()
    batch.keep[:, 2] = False
    after = batch.train()
    assert torch.equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])
    batch.keep[:] = False
    hidden = batch.train()
    hidden.sum().backward()
    for parameter in batch.drafter.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_by_parameters_or_by_autocast_stays_near_float32(small_config, autocast) -> None:
    exact = Batch(small_config, torch.float32).train()
    batch = Batch(small_config, torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = batch.train()
    assert hidden.dtype == (torch.float32 if autocast else torch.bfloat16)
    hidden.float().square().sum().backward()
    for parameter in batch.drafter.parameters():
        assert parameter.grad.dtype == parameter.dtype
    # Roundings to 8 bits, a few tens of them one after another, add up as a random walk.
    error = (hidden.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.05


def test_rms_norm_is_computed_in_float32() -> None:
    norm = RMSNorm(4, 1e-6).half()
    x = torch.tensor([[300.0, -300.0, 300.0, -300.0]], dtype=torch.float16)  # x * x overflows
    assert torch.equal(norm(x), torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float16))


def test_rotation_depends_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(8)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator, dtype=torch.float64)

    def score(query_at: int, key_at: int) -> Tensor:
        at = [rotary_angles(torch.tensor([[place]]), 16, 1e4) for place in (query_at, key_at)]
        return (rotate(query, at[0]) * rotate(key, at[1])).sum()

    torch.testing.assert_close(score(9, 4), score(1009, 1004), rtol=1e-4, atol=1e-4)
    assert not torch.isclose(score(9, 4), score(9, 5), rtol=1e-2)
    torch.testing.assert_close(score(5, 5), (query * key).sum(), rtol=1e-6, atol=1e-6)


def test_weights_come_from_the_seed(small_config) -> None:
    first, again, other = (Drafter(small_config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.fc.weight, again.fc.weight)
    assert not torch.equal(first.fc.weight, other.fc.weight)
    wide = Drafter(dataclasses.replace(small_config, hidden=512, layers=1), seed=3)
    assert wide.fc.weight.std().item() == pytest.approx(512**-0.5, rel=0.02)


def test_wrong_number_of_positions_is_refused(batch) -> None:
    with pytest.raises(ValueError, match="29 positions for 14 tokens of context and 16 slots"):
        batch.drafter(
            batch.embeds,
            batch.features,
            torch.zeros(2, 29, dtype=torch.int64),
            lambda q, k, v: attend_dense(q, k, v, None),
        )
