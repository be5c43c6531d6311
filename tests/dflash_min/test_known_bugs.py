"""Bugs that other DFlash trainers had, each as a test: what made the loss look good, or fail.

    future features leak where anchors overlap   here, and test_model.py
    features shifted by one                      here, and test_target.py, test_hf.py
    a block mask for each head                   here
    queries past the last block                  test_attention.py
    acceptance that was never generated          here
    padding as the mask token                    test_tokens.py, test_hf.py
    drafters averaged by their means             test_pipeline.py

Numbers are those of the issues: SF is sgl-project/SpecForge, z-lab is z-lab/dflash.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dflash_min import blocks
from dflash_min.attention import attend_dense, build_block_mask, dense_mask
from dflash_min.decoding.speculate import BlockProposer, Decoding, Nothing, Sampler, leading_matches
from dflash_min.loss import chunked_loss
from dflash_min.model import Drafter
from dflash_min.targets.builtin import Target

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def hidden(config, drafter, target, ids, places, features=None) -> torch.Tensor:
    """Run the training forward of a batch of one with anchors at these places: hidden_NKD."""
    anchors = torch.tensor([places])
    keep = torch.ones_like(anchors, dtype=torch.bool)
    size = config.block_size
    mask = dense_mask(anchors, keep, ids.shape[1], size)
    inputs = blocks.block_inputs(ids, anchors, size, config.mask_token_id)
    with torch.no_grad():
        out = drafter(
            target.embed_VD[inputs],
            target.features(ids) if features is None else features,
            blocks.positions(ids.shape[1], anchors, size),
            lambda q, k, v: attend_dense(q, k, v, mask),
        )
    return out.view(len(places), size, -1)


def test_sf_470_overlapping_anchors_do_not_see_each_others_future(small_config):
    """Visibility by block index shows a block the features up to the next block's anchor."""
    drafter, target = Drafter(small_config, seed=1), Target(small_config, seed=2)
    ids = torch.randint(0, 60, (1, 24), generator=torch.Generator().manual_seed(3))
    together = [5, 6, 7, 9, 20]
    found = hidden(small_config, drafter, target, ids, together)
    for index, anchor in enumerate(together):
        alone = hidden(small_config, drafter, target, ids, [anchor])[0]
        torch.testing.assert_close(found[index], alone)
        # And alone it depends on nothing that is not known when it is drafted.
        features = target.features(ids)
        features[:, anchor:] = 100.0
        unseen = hidden(small_config, drafter, target, ids, [anchor], features)[0]
        torch.testing.assert_close(alone, unseen)


def test_sf_471_features_stand_at_the_positions_of_their_tokens(small_config):
    """Shifted left by one, as EAGLE's are, they show the anchor's and misplace all others."""
    drafter, target = Drafter(small_config, seed=1), Target(small_config, seed=2)
    ids = torch.randint(0, 60, (1, 16), generator=torch.Generator().manual_seed(3))
    features = target.features(ids)
    anchor, size = 9, small_config.block_size
    trained = hidden(small_config, drafter, target, ids, [anchor])[0]

    def generated(features: torch.Tensor) -> torch.Tensor:
        """Draft as in generation: the features of the tokens before, at their own positions."""
        block = torch.full((1, size), small_config.mask_token_id)
        block[0, 0] = ids[0, anchor]
        positions = torch.arange(anchor + size)[None]
        with torch.no_grad():
            cache = drafter.context_cache(features[:, :anchor], positions[:, :anchor])
            return drafter.draft(target.embed_VD[block], cache, positions[:, anchor:])[0]

    torch.testing.assert_close(trained, generated(features))
    assert not torch.allclose(trained, generated(features.roll(-1, dims=1)), atol=1e-2)


@pytest.mark.parametrize("rows", [1, 3])
def test_sf_452_the_block_mask_is_one_for_all_heads(rows):
    """One for each head takes as many times the memory, and is the same for all."""
    anchors = torch.tensor([[2, 5, 40]]).repeat(rows, 1)
    keep = torch.ones_like(anchors, dtype=torch.bool)
    mask = build_block_mask(anchors, keep, 64, 4, torch.device("cpu"))
    assert mask.shape[:2] == (rows, 1)
    assert mask.kv_indices.shape[1] == 1


def trained_on(config, target, ids) -> Drafter:
    """Train a drafter on one text for a moment: well, but not to perfection."""
    drafter = Drafter(config, seed=1)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    learned = torch.ones_like(ids, dtype=torch.bool)
    for _ in range(60):
        anchors, keep = blocks.sample_anchors(learned, 32, generator)
        mask = dense_mask(anchors, keep, ids.shape[1], config.block_size)
        labels, weights = blocks.targets(ids, learned, anchors, keep, config.block_size, gamma=2.0)
        inputs = blocks.block_inputs(ids, anchors, config.block_size, config.mask_token_id)
        out = drafter(
            target.embed_VD[inputs],
            target.features(ids),
            blocks.positions(ids.shape[1], anchors, config.block_size),
            lambda q, k, v, mask=mask: attend_dense(q, k, v, mask),
        )
        sums = chunked_loss(
            out, target.lm_head_VD, labels, weights, 1000, block_size=config.block_size
        )
        sums.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return drafter


def test_z_lab_41_what_training_scores_is_what_generation_accepts(small_config):
    """Block by block: leading correct slots under teacher forcing are the accepted guesses."""
    target = Target(small_config, seed=2)
    prompt = list(range(1, 9))
    text = [*prompt, *Decoding(target, Nothing(), prompt, 90, sampler=Sampler(0.7)).run()]
    ids = torch.tensor([text])
    drafter = trained_on(small_config, target, ids)
    proposer = BlockProposer(drafter, target)
    decoding = Decoding(target, proposer, prompt, 90, sampler=Sampler(0.7))
    assert decoding.run() == text[len(prompt) :]
    anchors = [len(prompt)]
    for accepted in decoding.accepted[:-1]:
        anchors.append(anchors[-1] + accepted + 1)
    out = hidden(small_config, drafter, target, ids, anchors)
    guesses = F.linear(out[:, 1:], target.lm_head_VD).argmax(dim=-1).tolist()
    scored = [
        leading_matches(guess, text[anchor + 1 :])
        for guess, anchor in zip(guesses, anchors, strict=True)
    ]
    # The last cycle has no more text to be compared with than was asked for.
    assert scored[:-1] == decoding.accepted[:-1]
    assert 1.5 < decoding.tau < small_config.block_size
    assert len(set(scored)) > 1
