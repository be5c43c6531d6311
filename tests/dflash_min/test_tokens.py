"""Text as ids and back, for bytes and for a Hugging Face tokenizer built in code."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_min.config import ROLE_TOKENS, TrainConfig
from dflash_min.errors import UsageError
from dflash_min.huggingface.tokens import HfTokens
from dflash_min.resolve import resolve
from dflash_min.tokens import ByteTokens, mask_token_id, of_target

from .hf_models import CHAT, TEMPLATE, byte_tokenizer, named

VOCAB = 300


def hf_tokens(template: str | None = TEMPLATE, **settings) -> HfTokens:
    tokenizer = byte_tokenizer(**settings)
    tokenizer.chat_template = template
    return HfTokens(tokenizer, named("tiny"), vocab=VOCAB, mask_token_id=259)


def texts(tokens: HfTokens, messages: list[tuple[str, str]]) -> list[tuple[str, bool]]:
    """Write a conversation's pieces as text, special tokens included."""
    return [(tokens._tokenizer.decode(ids), learned) for ids, learned in tokens.chat(messages)]


@given(st.text())
def test_bytes_go_there_and_back(text):
    tokens = ByteTokens()
    ids = tokens.encode(text)
    assert ids == list(text.encode())
    assert tokens.decode([tokens.mask_token_id, *ids, tokens.end_id, tokens.pad_id]) == text


def test_half_a_character_is_replaced():
    assert ByteTokens().decode("ä".encode()[:1]) == "\ufffd"


def test_a_conversation_in_bytes_has_a_role_and_an_end_for_each_message():
    tokens = ByteTokens()
    assert tokens.chat(CHAT[1:3]) == [
        ([ROLE_TOKENS["user"]], False),
        (list(b"2+2?"), False),
        ([tokens.end_id], False),
        ([ROLE_TOKENS["assistant"]], False),
        (list("fóur".encode()), True),
        ([tokens.end_id], False),
    ]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_tokenizers_ids_go_there_and_back(text):
    tokens = hf_tokens()
    assert tokens.decode(tokens.encode(text)) == text


def test_a_template_says_where_the_assistant_speaks():
    """Earlier answers are written without the thought that the last one gets."""
    header = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert texts(hf_tokens(), CHAT) == [
        (header, False),
        ("fóur<|im_end|>", True),
        ("\n<|im_start|>user\nassistant, sure?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<think>\n\n</think>\n\nyes<|im_end|>", True),
        ("\n", False),
    ]


def test_without_a_template_messages_are_lines():
    assert texts(hf_tokens(None), CHAT[1:3]) == [
        ("user: 2+2?\nassistant: ", False),
        ("fóur\n", True),
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system here') }}", "no system here"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not keep message 3"),
        ("{% for m in messages %}{{ m.content }}", "its chat template says"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(template, message):
    with pytest.raises(UsageError, match=message) as caught:
        hf_tokens(template).chat(CHAT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["./model", "hf:model"])
def test_messages_have_the_target_as_it_was_given(word, tmp_path, monkeypatch, small_config):
    monkeypatch.chdir(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    tokenizer.save_pretrained("model")
    (tmp_path / "model" / "config.json").write_text("{}")
    tokens = of_target(word, dataclasses.replace(small_config, vocab=VOCAB))
    with pytest.raises(UsageError) as caught:
        tokens.chat(CHAT)
    assert str(caught.value) == f"--target {word}: its chat template says: no system here"
    with pytest.raises(UsageError) as caught:
        of_target(word, small_config)
    wanted = f"--target {word}: its tokenizer has 259 tokens, its embedding 64 rows"
    assert str(caught.value) == wanted


def test_the_end_pads_where_there_is_no_padding():
    tokens = hf_tokens(pad_token=None)
    assert (tokens.end_id, tokens.pad_id) == (257, 257)
    assert (hf_tokens().end_id, hf_tokens().pad_id) == (257, 258)


def test_a_tokenizer_without_an_end_or_beyond_the_embedding_is_refused():
    with pytest.raises(UsageError, match="no token that ends a text"):
        hf_tokens(eos_token=None)
    with pytest.raises(UsageError, match="has 259 tokens, its embedding 258 rows"):
        HfTokens(byte_tokenizer(), named("tiny"), vocab=258, mask_token_id=0)


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="no tokenizer that can be used") as caught:
        HfTokens.load(named(tmp_path), vocab=VOCAB, mask_token_id=0)
    assert "\n" not in str(caught.value)


def test_the_mask_of_bytes_is_an_id_without_a_meaning():
    assert mask_token_id("", 264, None) == 256
    assert mask_token_id("", 264, 263) == 263
    for wanted, message in (
        (65, "65 is a byte of the text"),
        (257, "257 is the target's padding token"),
        (258, "258 is the target's end token"),
        (260, "260 is the target's user token"),
        (264, "must be below the target's 264 ids, got 264"),
        (-1, "must be at least 0, got -1"),
    ):
        with pytest.raises(UsageError, match=message):
            mask_token_id("", 264, wanted)


def test_the_mask_that_was_named_is_the_drafters():
    assert resolve(TrainConfig(mask_token_id=263), 0).model.mask_token_id == 263
    assert resolve(TrainConfig(), 0).model.mask_token_id == 256
    with pytest.raises(UsageError, match="--mask-token-id 257"):
        resolve(TrainConfig(mask_token_id=257), 0)
