"""Speculative decoding of one text: a proposer guesses a block, the target checks it in one run.

The loop is that of the published drafters (`dflash_generate` in z-lab/dflash): the last token of
the text, whose own feature does not exist yet, and the guesses behind it go through the target
together; the guesses are kept up to the first that the target would not have chosen, and the
target's choice there comes free. So the text is the target's own, whatever is guessed.

That holds up to rounding: kernels differ with the number of tokens in a run, and where the target's
two best logits are as near as their last bits, the block's run and a run of one token can choose
differently. See `dflash_min.model` for the legend of shape suffixes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch
import torch.nn.functional as F

from dflash_min.data import seeded
from dflash_min.targets.kvcache import KVCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from dflash_min.model import Drafter
    from dflash_min.targets.interface import TargetCache, TargetModel

_PREFILL: Final = 512
"""Prompt tokens in a run of the target: logits of all of them exist at one time."""


class Proposer(Protocol):
    """Guesses what follows in one text, called once a cycle as the text grows."""

    def propose(self, tokens: Sequence[int], features_1LF: Tensor) -> list[int]:
        """Guess any number of tokens behind `tokens`.

        Args:
            tokens: the whole text so far, at least one token.
            features_1LF: the target's features of the tokens that were added since the last call,
                up to the one before the last, which has none yet; at first of all before it.
        """


class Nothing:
    """Guesses nothing: with it the loop is plain decoding, one token a run of the target."""

    def propose(self, tokens: Sequence[int], features_1LF: Tensor) -> list[int]:
        """Return no guess."""
        del tokens, features_1LF
        return []


class BlockProposer:
    """A DFlash drafter, and its keys and values of the text so far. Made anew for each text."""

    def __init__(
        self, drafter: Drafter, target: TargetModel, *, block_size: int | None = None
    ) -> None:
        """Take a drafter on the target's device.

        Args:
            drafter: any dtype; features and embeddings are converted to it.
            target: whose embedding and head the drafter works between.
            block_size: slots, the last token's included; those it was trained with if not given.
        """
        config = drafter.config
        slots = config.block_size if block_size is None else block_size
        self._drafter = drafter
        self._dtype = drafter.fc.weight.dtype
        self._embed_VD = target.embed_VD
        self._lm_head_VD = target.lm_head_VD
        self._cache = KVCache(config.layers, batch=1)
        self._ids_1K = torch.full(
            (1, slots), config.mask_token_id, device=self._embed_VD.device, dtype=torch.int64
        )

    @torch.no_grad()
    def propose(self, tokens: Sequence[int], features_1LF: Tensor) -> list[int]:
        """Guess the tokens of all slots but the first, each the likeliest in its slot."""
        self._add_context(features_1LF)
        self._ids_1K[0, 0] = tokens[-1]
        slots, device = self._ids_1K.shape[1], self._ids_1K.device
        positions_1K = len(tokens) - 1 + torch.arange(slots, device=device)[None]
        hidden_1KD = self._drafter.draft(
            F.embedding(self._ids_1K, self._embed_VD).to(self._dtype),
            [self._cache.read(layer) for layer in range(self._drafter.config.layers)],
            positions_1K,
        )
        logits_1KV = F.linear(hidden_1KD[:, 1:].to(self._lm_head_VD.dtype), self._lm_head_VD)
        guesses: list[int] = logits_1KV[0].argmax(dim=-1).tolist()
        return guesses

    def _add_context(self, features_1LF: Tensor) -> None:
        past, new = self._cache.length, features_1LF.shape[1]
        positions_1L = past + torch.arange(new, device=features_1LF.device)[None]
        states = self._drafter.context_cache(features_1LF.to(self._dtype), positions_1L)
        for layer, (keys, values) in enumerate(states):
            self._cache.store(layer, keys, values)
        self._cache.advance(new)


@dataclass(frozen=True)
class Sampler:
    """Chooses tokens from logits: the likeliest, or one drawn at a temperature.

    What is drawn at a position depends on the seed, the position and the logits only, so that a
    seed gives one text however it is speculated on.
    """

    temperature: float = 0.0
    """0 chooses the likeliest token."""
    seed: int = 0

    def choose(self, logits_LV: Tensor, position: int) -> list[int]:
        """Return a token for each row of logits, the first of which is for `position`."""
        if self.temperature == 0:
            chosen: list[int] = logits_LV.argmax(dim=-1).tolist()
            return chosen
        below_LV = (logits_LV / self.temperature).double().softmax(dim=-1).cumsum(dim=-1)
        draws = [self._uniform(position + row) for row in range(len(logits_LV))]
        draws_L1 = torch.tensor(draws, dtype=torch.float64, device=logits_LV.device)[:, None]
        # The sum of all probabilities can come to a bit less than 1, and a draw lie above it.
        drawn = torch.searchsorted(below_LV, draws_L1 * below_LV[:, -1:], right=True)
        sampled: list[int] = drawn.clamp(max=logits_LV.shape[-1] - 1)[:, 0].tolist()
        return sampled

    def _uniform(self, position: int) -> float:
        return random.Random(seeded(self.seed, "sample", position)).random()  # noqa: S311


@dataclass
class Decoding:
    """One text while it grows, and how much of what was proposed was accepted."""

    target: TargetModel
    proposer: Proposer
    prompt: Sequence[int]
    max_tokens: int
    """To be added to the prompt at most."""
    end_id: int | None = None
    """A token that ends the text, itself included."""
    sampler: Sampler = field(default_factory=Sampler)
    tokens: list[int] = field(default_factory=list, init=False)
    """What was added to the prompt so far."""
    accepted: list[int] = field(default_factory=list, init=False)
    """Guesses that the target agreed with, for each cycle, a last one that was cut short too."""

    @property
    def tau(self) -> float:
        """Mean number of tokens that a run of the target committed, its own one included.

        The prompt's run, which commits one token without a guess, is left out; nan before the first
        cycle.
        """
        cycles = len(self.accepted)
        return sum(self.accepted) / cycles + 1 if cycles else float("nan")

    def run(self) -> list[int]:
        """Decode to the end and return the added tokens."""
        for _ in self.stream():
            pass
        return self.tokens

    def stream(self) -> Iterator[list[int]]:
        """Decode, and yield the added tokens as they are committed, some at a time.

        Raises:
            ValueError: for an empty prompt.
        """
        if not self.prompt:
            raise ValueError("a prompt needs at least one token")
        if self.max_tokens < 1:
            return
        text = list(self.prompt)
        cache = self.target.cache(1)
        features_1LF, chosen = self._prefill(text, cache)
        committed = self._commit(chosen)
        yield committed
        while not self._ended():
            text += committed
            guesses = self.proposer.propose(text, features_1LF)
            logits_1KV, features_1KF = self._extend([text[-1], *guesses], cache)
            chosen = self.sampler.choose(logits_1KV[0], len(text))
            accepted = leading_matches(guesses, chosen)
            self.accepted.append(accepted)
            cache.crop(len(text) + accepted)
            features_1LF = features_1KF[:, : accepted + 1]
            committed = self._commit(chosen[: accepted + 1])
            yield committed

    def _prefill(self, text: Sequence[int], cache: TargetCache) -> tuple[Tensor, list[int]]:
        """Run the target on the prompt; return its features and the first chosen token."""
        parts = []
        for start in range(0, len(text), _PREFILL):
            logits_1LV, features_1LF = self._extend(text[start : start + _PREFILL], cache)
            parts.append(features_1LF)
        return torch.cat(parts, dim=1), self.sampler.choose(logits_1LV[0, -1:], len(text))

    def _extend(self, ids: Sequence[int], cache: TargetCache) -> tuple[Tensor, Tensor]:
        return self.target.extend(torch.tensor([ids], device=self.target.embed_VD.device), cache)

    def _commit(self, chosen: list[int]) -> list[int]:
        """Add chosen tokens as far as the text goes, and return those."""
        if self.end_id in chosen:
            chosen = chosen[: chosen.index(self.end_id) + 1]
        chosen = chosen[: self.max_tokens - len(self.tokens)]
        self.tokens += chosen
        return chosen

    def _ended(self) -> bool:
        return len(self.tokens) >= self.max_tokens or self.tokens[-1] == self.end_id


def leading_matches(guesses: Sequence[int], chosen: Sequence[int]) -> int:
    """Return how many guesses are right before the first that is not."""
    for count, (guess, token) in enumerate(zip(guesses, chosen, strict=False)):
        if guess != token:
            return count
    return min(len(guesses), len(chosen))
