"""Text as token ids, and back: what the data and the generation need of a tokenizer.

`ByteTokens` is the built-in target's; `dflash_min.huggingface.tokens` has a Hugging Face model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dflash_min.bounds import check_mask_token
from dflash_min.config import END_TOKEN, MASK_TOKEN, PAD_TOKEN, ROLE_TOKENS, VOCAB_SIZE
from dflash_min.errors import UsageError
from dflash_min.targets import choice as targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.config import ModelConfig


class Tokens(Protocol):
    """A vocabulary. Ids are rows of the target's embedding."""

    @property
    def name(self) -> str:
        """Which tokenizer this is."""
        ...

    @property
    def vocab(self) -> int:
        """Number of rows of the embedding, which may be more than there are tokens."""
        ...

    @property
    def mask_token_id(self) -> int:
        """What fills a block's slots after the anchor."""
        ...

    @property
    def pad_id(self) -> int:
        """What fills a sequence behind its text."""
        ...

    @property
    def end_id(self) -> int:
        """What ends a document."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the text's ids, and nothing before or after them."""
        ...

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[tuple[list[int], bool]]:
        """Return a conversation as pieces: their ids, and whether the loss is on them.

        Args:
            messages: role and content of each; a role is one of `config.ROLE_TOKENS`.

        Raises:
            UsageError: if this tokenizer cannot write such a conversation.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no text is left out, and half a character replaced."""
        ...


@dataclass(frozen=True)
class ByteTokens:
    """Tokens 0..255 are bytes of UTF-8; what text cannot say has ids of its own."""

    name: str = "bytes"
    vocab: int = VOCAB_SIZE
    mask_token_id: int = MASK_TOKEN
    pad_id: int = PAD_TOKEN
    end_id: int = END_TOKEN

    def encode(self, text: str) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode())

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[tuple[list[int], bool]]:
        """Put each message between its role's id and the end; what the assistant says is learned.

        Raises:
            KeyError: for a role without an id.
        """
        pieces = []
        for role, content in messages:
            pieces += [
                ([ROLE_TOKENS[role]], False),
                (self.encode(content), role == "assistant"),
                ([self.end_id], False),
            ]
        return pieces

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes among the ids."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")


def mask_token_id(target: str, vocab: int, wanted: int | None) -> int:
    """Choose the mask token of a target, without importing torch.

    Args:
        target: a value of `--target`.
        vocab: rows of its embedding.
        wanted: the id that the user gave, if any.

    Raises:
        UsageError: if the wanted id has a meaning of its own or is no row, or if there is none to
            choose.
    """
    named = targets.parse(target).hf
    if named is not None:
        from dflash_min.huggingface import config as hf_config

        return hf_config.mask_token_id(named, vocab, wanted)
    if wanted is None:
        return MASK_TOKEN
    if 0 <= wanted < 256:
        raise UsageError(f"--mask-token-id {wanted} is a byte of the text")
    meanings = {"padding": PAD_TOKEN, "end": END_TOKEN, **ROLE_TOKENS}
    check_mask_token(wanted, vocab, meanings)
    return wanted


def of_target(target: str, model: ModelConfig) -> Tokens:
    """Return a target's tokens, given a value of `--target` and the model's sizes.

    Raises:
        UsageError: if a Hugging Face target's tokenizer cannot be used.
    """
    named = targets.parse(target).hf
    if named is None:
        return ByteTokens(vocab=model.vocab, mask_token_id=model.mask_token_id)
    from dflash_min.huggingface.tokens import HfTokens

    return HfTokens.load(named, vocab=model.vocab, mask_token_id=model.mask_token_id)
