"""Speculative decoding gives the target's own text, whatever is guessed."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash_min.decoding.ngram import NgramModel, PromptLookup
from dflash_min.decoding.speculate import (
    BlockProposer,
    Decoding,
    Nothing,
    Sampler,
    leading_matches,
)
from dflash_min.model import Drafter
from dflash_min.targets.builtin import Target

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCAB = 12
END = 11


class HashCache:
    """Remembers the tokens themselves."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @property
    def length(self) -> int:
        return len(self.seen)

    def crop(self, length: int) -> None:
        assert 0 <= length <= len(self.seen)
        del self.seen[length:]


class HashTarget:
    """Logits are small whole numbers made of all tokens before: exact, and full of ties.

    The feature of a token is its position, so that a proposer can see whether it gets the right
    ones.
    """

    def __init__(self) -> None:
        self.embed_VD = torch.zeros(VOCAB, 1)

    def cache(self, batch: int) -> HashCache:
        assert batch == 1
        return HashCache()

    def extend(self, ids, cache):
        rows, places = [], []
        for token in ids[0].tolist():
            places.append(float(cache.length))
            cache.seen.append(token)
            rows.append(self.logits(cache.seen))
        return torch.tensor([rows]), torch.tensor(places)[None, :, None]

    def logits(self, seen: list[int]) -> list[float]:
        digest = hashlib.blake2b(bytes(seen), digest_size=VOCAB).digest()
        return [float(byte % 4) for byte in digest]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The reference: no cache, no blocks, one token after another."""
        text = list(prompt)
        while len(text) < len(prompt) + count and (len(text) == len(prompt) or text[-1] != END):
            logits = self.logits(text)
            text.append(logits.index(max(logits)))
        return text[len(prompt) :]


class Oracle:
    """Knows the text that comes, and is wrong where it is told to be."""

    def __init__(self, text: list[int], wrong: list[bool], counts: list[int]) -> None:
        self.text, self.wrong, self.counts = text, wrong, counts
        self.features: list[float] = []

    def propose(self, tokens, features):
        self.features += features[0, :, 0].tolist()
        assert self.features == list(range(len(tokens) - 1)), (
            "a feature for each token but the last"
        )
        cycle = self.counts[len(tokens) % len(self.counts)]
        ahead = self.text[len(tokens) : len(tokens) + cycle]
        return [
            (token + self.wrong[(len(tokens) + i) % len(self.wrong)]) % VOCAB
            for i, token in enumerate(ahead)
        ]


PROMPTS = st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=20)


@given(
    prompt=PROMPTS,
    max_tokens=st.integers(1, 40),
    wrong=st.lists(st.booleans(), min_size=1, max_size=7),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    end=st.sampled_from([None, END]),
)
@settings(max_examples=300, deadline=None)
def test_the_text_is_the_targets_whatever_is_guessed(prompt, max_tokens, wrong, counts, end):
    target = HashTarget()
    expected = target.greedy(prompt, max_tokens) if end else None
    if expected is None:
        expected = Decoding(target, Nothing(), prompt, max_tokens).run()
    oracle = Oracle(prompt + target.greedy(prompt, 60), wrong, counts)
    decoding = Decoding(target, oracle, prompt, max_tokens, end)
    pieces = list(decoding.stream())
    assert decoding.tokens == expected
    assert [token for piece in pieces for token in piece] == expected
    assert all(pieces)


def test_plain_decoding_is_one_run_of_the_target_a_token() -> None:
    target = HashTarget()
    plain = Decoding(target, Nothing(), [1, 2, 3], 25)
    pieces = list(plain.stream())
    assert [len(piece) for piece in pieces] == [1] * 25
    assert plain.accepted == [0] * 24
    assert plain.tau == 1.0


def test_tau_counts_the_guesses_that_were_right_and_the_targets_own_token() -> None:
    target, prompt = HashTarget(), [3]
    text = prompt + Decoding(target, Nothing(), prompt, 60).run()
    right = Decoding(target, Oracle(text, [False], [4]), prompt, 21)
    right.run()
    assert right.accepted == [4, 4, 4, 4]  # 1 token by the prompt's run, then 5 a cycle
    assert right.tau == 5.0
    wrong = Decoding(target, Oracle(text, [True], [4]), prompt, 21)
    wrong.run()
    assert wrong.accepted == [0] * 20
    # A cycle that the limit cuts short counts as it was verified.
    cut = Decoding(target, Oracle(text, [False], [4]), prompt, 3)
    assert (len(cut.run()), cut.accepted) == (3, [4])


def test_a_single_token_has_no_cycle_and_no_tau() -> None:
    decoding = Decoding(HashTarget(), Nothing(), [1], 1)
    assert len(decoding.run()) == 1
    assert decoding.tau != decoding.tau


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt"):
        Decoding(HashTarget(), Nothing(), [], 4).run()


@given(
    prompt=PROMPTS,
    seed=st.integers(0, 2**63 - 1),
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_drawn_text_depends_on_the_seed_and_not_on_the_guesses(prompt, seed, counts) -> None:
    target, sampler = HashTarget(), Sampler(temperature=0.8, seed=seed)
    plain = Decoding(target, Nothing(), prompt, 20, sampler=sampler).run()
    oracle = Oracle(prompt + plain + [0] * 10, [False, True, False], counts)
    assert Decoding(target, oracle, prompt, 20, sampler=sampler).run() == plain


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[0.5, 2.0, -1.0, 0.0]]).expand(4000, -1)
    for temperature in (1.0, 0.5):
        drawn = torch.tensor(Sampler(temperature, seed=3).choose(logits, 0))
        shares = torch.bincount(drawn, minlength=4) / 4000
        expected = (logits[0] / temperature).softmax(0)
        # Four standard deviations of a share of 4,000 draws.
        assert ((shares - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_a_low_temperature_takes_the_likeliest_and_no_token_is_beyond_the_vocabulary() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    assert Sampler(1e-4).choose(logits, 0) == Sampler().choose(logits, 0)
    assert max(Sampler(1e6).choose(logits, 0)) < 50


@pytest.mark.parametrize(
    ("guesses", "chosen", "matches"),
    [([], [5], 0), ([5], [5, 6], 1), ([5, 7, 8], [5, 6, 8, 9], 1), ([1], [2, 1], 0)],
)
def test_only_leading_matches_count(guesses, chosen, matches) -> None:
    assert leading_matches(guesses, chosen) == matches


# With the real models.


def greedy_by_whole_forwards(
    target: Target, prompt: list[int], count: int
) -> tuple[list[int], float]:
    """Decode without a cache; return the tokens and the least lead of a choice over the next."""
    text, lead = list(prompt), float("inf")
    with torch.no_grad():
        for _ in range(count):
            logits = target.lm_head(target(torch.tensor([text])))[0, -1]
            best, second = logits.topk(2).values
            lead = min(lead, float(best - second))
            text.append(int(logits.argmax()))
    return text[len(prompt) :], lead


# Blocks and single tokens go through other kernels: logits of about 1 differ by some 1e-6, and
# within that the order of two tokens is chance.
LEAST_LEAD = 5e-5


@given(
    prompt=st.lists(st.integers(0, 62), min_size=1, max_size=24),
    max_tokens=st.integers(1, 24),
    block_size=st.integers(2, 9),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_greedy_text_with_a_drafter_is_the_targets_own(
    small_config_of_the_module, prompt, max_tokens, block_size, seed
) -> None:
    config = small_config_of_the_module
    target = Target(config, seed=seed)
    expected, lead = greedy_by_whole_forwards(target, prompt, max_tokens)
    assume(lead > LEAST_LEAD)
    proposer = BlockProposer(Drafter(config, seed=seed), target, block_size=block_size)
    assert Decoding(target, proposer, prompt, max_tokens).run() == expected


@pytest.fixture(scope="module")
def small_config_of_the_module():
    from dflash_min.config import ModelConfig

    return ModelConfig(
        hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, layers=2, target_layers=5,
        block_size=4, vocab=64, mask_token_id=63,
    )  # fmt: skip


def test_a_long_prompt_goes_through_the_target_in_parts(small_config) -> None:
    target = Target(small_config)
    prompt = torch.randint(0, 60, (1100,), generator=torch.Generator().manual_seed(1)).tolist()
    expected, lead = greedy_by_whole_forwards(target, prompt, 3)
    assert lead > LEAST_LEAD
    assert (
        Decoding(target, BlockProposer(Drafter(small_config), target), prompt, 3).run() == expected
    )


def test_guesses_are_those_of_a_drafter_that_reads_the_whole_text_at_once(small_config) -> None:
    """The context's keys and values are added as the text grows, at their own positions."""
    target, drafter = Target(small_config), Drafter(small_config, seed=1)
    ids = torch.randint(0, 60, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    features = target.features(torch.tensor([ids]))
    proposer, before = BlockProposer(drafter, target), 0
    for length in (5, 6, 9, 30):
        grown = proposer.propose(ids[:length], features[:, before : length - 1])
        fresh = BlockProposer(drafter, target)
        assert grown == fresh.propose(ids[:length], features[:, : length - 1])
        before = length - 1


def test_a_block_may_be_shorter_than_in_training(small_config) -> None:
    target = Target(small_config)
    config = dataclasses.replace(small_config, block_size=6)
    drafter = Drafter(config, seed=1)
    features = target.features(torch.tensor([[1, 2, 3]]))
    assert len(BlockProposer(drafter, target).propose([1, 2, 3, 4], features)) == 5
    assert len(BlockProposer(drafter, target, block_size=3).propose([1, 2, 3, 4], features)) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_ngrams_take_a_drafters_place(small_config, temperature) -> None:
    target, sampler = Target(small_config), Sampler(temperature, seed=2)
    prompt = [1, 2, 3, 1, 2, 3, 1]
    plain = Decoding(target, Nothing(), prompt, 30, sampler=sampler).run()
    for proposer in (
        NgramModel(prompt + plain, vocab=64, order=4, count=3),
        PromptLookup(longest=3, count=3),
    ):
        decoding = Decoding(target, proposer, prompt, 30, sampler=sampler)
        assert decoding.run() == plain
    counted = Decoding(
        target, NgramModel(prompt + plain, vocab=64, order=6, count=3), prompt, 30, sampler=sampler
    )
    counted.run()
    assert counted.tau > 2  # it has counted this very text


NO_FEATURES = torch.zeros(1, 0, 1)


def test_an_ngram_model_backs_off_from_the_longest_context_it_has_counted() -> None:
    model = NgramModel([1, 2, 3, 1, 2, 3, 1, 2, 4, 5, 2, 3], vocab=8, order=3, count=2)
    assert model.propose([7, 1, 2], NO_FEATURES) == [3, 1]  # after 1 2: twice 3, once 4
    assert model.propose([5, 2], NO_FEATURES) == [3, 1]
    assert model.propose([7], NO_FEATURES) == [2, 3]  # never seen: the most frequent, then on


def test_an_ngram_model_of_a_large_vocabulary_keeps_to_contexts_that_fit() -> None:
    model = NgramModel([70000, 1, 70000, 2, 70000, 2], vocab=151936, order=9, count=1)
    assert model.order == 2
    assert model.propose([70000], NO_FEATURES) == [2]


def test_prompt_lookup_copies_from_the_latest_place_and_else_guesses_nothing() -> None:
    lookup = PromptLookup(longest=2, count=3)
    assert lookup.propose([1, 2, 9, 8, 1, 2, 7, 6, 5, 1, 2], NO_FEATURES) == [7, 6, 5]
    assert lookup.propose([4, 2, 9, 3, 2], NO_FEATURES) == [9, 3, 2]  # only one token is known
    assert lookup.propose([1, 1, 1], NO_FEATURES) == [1]
    assert lookup.propose([1, 2, 3], NO_FEATURES) == []
    assert lookup.propose([1], NO_FEATURES) == []
