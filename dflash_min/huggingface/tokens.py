"""The tokenizer of a Hugging Face model."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from dflash_min.errors import first_line
from dflash_min.huggingface import hub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from dflash_min.huggingface.named import Named

Span = tuple[int, int]
"""Where a stretch of text begins and ends, in characters."""

_ROLE_LINE: Final = "{role}: {content}\n"


class HfTokens:
    """Ids of a transformers tokenizer; conversations are written by its chat template."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, model: Named, *, vocab: int, mask_token_id: int
    ) -> None:
        """Take a tokenizer that knows where in the text its tokens are.

        Args:
            tokenizer: a fast one.
            model: the one that it belongs to.
            vocab: rows of the model's embedding.
            mask_token_id: as `huggingface.config.mask_token_id` chooses it.

        Raises:
            UsageError: if it cannot say where its tokens are, has no token that ends a text, or has
                more tokens than the embedding has rows.
        """
        if not tokenizer.is_fast:
            raise model.refused("its tokenizer does not say where its tokens are")
        if tokenizer.eos_token_id is None:
            raise model.refused("its tokenizer has no token that ends a text")
        if len(tokenizer) > vocab:
            raise model.refused(
                f"its tokenizer has {len(tokenizer)} tokens, its embedding {vocab} rows"
            )
        self._tokenizer = tokenizer
        self._model = model
        self.name = model.word
        self.vocab = vocab
        self.mask_token_id = mask_token_id
        self.end_id: int = tokenizer.eos_token_id
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.end_id if pad is None else pad

    @classmethod
    def load(cls, model: Named, *, vocab: int, mask_token_id: int) -> HfTokens:
        """Load a model's tokenizer.

        Raises:
            UsageError: if there is none, or it cannot be used.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                model.name, local_files_only=hub.local_only(model)
            )
        except (OSError, ValueError) as error:
            raise model.refused(f"no tokenizer that can be used ({first_line(error)})") from error
        return cls(tokenizer, model, vocab=vocab, mask_token_id=mask_token_id)

    def encode(self, text: str) -> list[int]:
        """Return the text's ids, without those that a model puts around a whole text."""
        return self._encode(text)[0]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[tuple[list[int], bool]]:
        """Return a conversation as pieces; the loss is on what the assistant says.

        That is all from where the template asks for an answer to the answer's end, its closing
        token included, since it is what the model has to write itself. A tokenizer without a
        template gets a line of "role: content" for each message.

        Raises:
            UsageError: if the template refuses the conversation, or writes it so that the
                assistant's words are not found in it.
        """
        if self._tokenizer.chat_template is None:
            text, spans = _plain(messages)
        else:
            text, spans = self._templated(messages)
        ids, places = self._encode(text)
        learned = [any(a < end and b > start for start, end in spans) for a, b in places]
        return [
            ([index for index, _ in group], is_learned)
            for is_learned, group in groupby(
                zip(ids, learned, strict=True), key=lambda pair: pair[1]
            )
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _encode(self, text: str) -> tuple[list[int], list[Span]]:
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        return encoded["input_ids"], encoded["offset_mapping"]

    def _templated(self, messages: Sequence[tuple[str, str]]) -> tuple[str, list[Span]]:
        """Write a conversation by the template, and find the assistant's words in it."""
        rows = [{"role": role, "content": content} for role, content in messages]
        text = self._render(rows)
        spans = []
        for index, row in enumerate(rows):
            if row["role"] != "assistant":
                continue
            before = self._render(rows[:index], add_generation_prompt=True) if index else ""
            # Between the request and the words a template may put a thought, empty or not.
            said = text.find(row["content"].strip(), len(before))
            if not text.startswith(before) or said < 0:
                raise self._model.refused(f"its chat template does not keep message {index + 1}")
            end = said + len(row["content"].strip())
            spans.append((len(before), end + self._closing(text[end:])))
        return text, spans

    def _render(self, rows: list[dict[str, str]], **settings: Any) -> str:  # noqa: ANN401
        from jinja2 import TemplateError

        try:
            return str(self._tokenizer.apply_chat_template(rows, tokenize=False, **settings))
        except (TemplateError, ValueError) as error:
            raise self._model.refused(f"its chat template says: {error}") from error

    def _closing(self, text: str) -> int:
        """Return the length of the special token that the text begins with, 0 if with none."""
        special = self._tokenizer.added_tokens_encoder
        return max((len(token) for token in special if text.startswith(token)), default=0)


def _plain(messages: Sequence[tuple[str, str]]) -> tuple[str, list[Span]]:
    """Write a conversation in lines, and say where the assistant's words are."""
    text, spans = "", []
    for role, content in messages:
        line = _ROLE_LINE.format(role=role, content=content)
        if role == "assistant":
            # With its line's end, which is how this model says that it is done.
            spans.append((len(text) + len(role) + 2, len(text) + len(line)))
        text += line
    return text, spans
