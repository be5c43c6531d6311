"""Reading text, and dealing it out by number."""

from __future__ import annotations

import dataclasses
import json
import random
import sysconfig
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_min.config import END_TOKEN, PAD_TOKEN, ROLE_TOKENS
from dflash_min.data import Text, seeded
from dflash_min.errors import UsageError
from dflash_min.stream import Stream
from dflash_min.tokens import ByteTokens

PROSE = "The quick brown fox jumps over the lazy dog. 0123456789 äöü\n" * 40


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_text(PROSE, encoding="utf-8")
    return path


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def decoded(ids: torch.Tensor) -> bytes:
    return bytes(token for token in ids.tolist() if token < 256)


def test_a_batch_is_a_stretch_of_the_text(prose):
    ids, learned = Text.load([prose], seed=0, longest=64).batch(0, 64, 3)
    assert (ids.shape, ids.dtype) == ((3, 64), torch.int64)
    assert (learned.shape, learned.dtype) == ((3, 64), torch.bool)
    assert learned.all()
    for row in ids:
        assert decoded(row) in PROSE.encode()


def test_a_batch_depends_on_seed_and_number_only(prose):
    first, again = (Text.load([prose], seed=1, longest=64) for _ in range(2))
    state = torch.get_rng_state()
    wanted = [first.batch(number, 64, 2)[0] for number in range(6)]
    for number in (5, 0, 3, 3, 1):
        assert again.batch(number, 64, 2)[0].equal(wanted[number])
    assert torch.get_rng_state().equal(state)
    assert len({tuple(ids.flatten().tolist()) for ids in wanted}) == 6
    other = Text.load([prose], seed=2, longest=64)
    assert not other.batch(0, 64, 2)[0].equal(wanted[0])


def test_padding_lies_behind_the_text_and_outside_the_loss(prose):
    text = Text.load([prose], seed=0, longest=64)
    plain, padded = text.batch(4, 48, 2), text.batch(4, 48, 2, padded_length=64)
    assert padded[0][:, :48].equal(plain[0])
    assert padded[1][:, :48].equal(plain[1])
    assert (padded[0][:, 48:] == PAD_TOKEN).all()
    assert not padded[1][:, 48:].any()


def test_held_out_text_is_not_trained_on(tmp_path):
    # Every two bytes occur once, so a window says where it is from.
    path = tmp_path / "counting.txt"
    path.write_text("".join(f"{i:03d}," for i in range(900)))
    text = Text.load([path], seed=0, longest=40)
    assert text.holds_out
    highest = max(
        int(part)
        for i in range(200)
        for row in text.batch(i, 40, 4)[0]
        for part in decoded(row).split(b",")[1:-1]
    )
    lowest = min(
        int(part)
        for i in range(50)
        for row in text.held_out_batch(i, 40, 4)[0]
        for part in decoded(row).split(b",")[1:-1]
    )
    assert highest < lowest
    assert text.held_out_batch(3, 40, 2)[0].equal(text.held_out_batch(3, 40, 2)[0])


def test_little_text_is_all_trained_on(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("x" * 70)
    text = Text.load([path], seed=0, longest=64)
    assert not text.holds_out
    with pytest.raises(ValueError, match="too little text"):
        text.held_out_batch(0, 64, 1)


def test_the_standard_library_is_there_without_data():
    text = Text.load([], seed=0, longest=256)
    stdlib = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    first = decoded(text.batch(0, 256, 1)[0][0])
    assert any(first[:100] in path.read_bytes() for path in stdlib)
    assert text.batch(7, 200, 2)[0].equal(Text.load([], 0, 256).batch(7, 200, 2)[0])


def test_only_what_the_assistant_says_is_learned(tmp_path):
    path = jsonl(
        tmp_path / "chat.jsonl",
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "fóur"},
                {"role": "user", "content": "sure?"},
                {"role": "assistant", "content": "yes"},
            ]
        },
    )
    said = [
        *(ROLE_TOKENS["system"], *b"be brief", END_TOKEN),
        *(ROLE_TOKENS["user"], *b"2+2?", END_TOKEN),
        *(ROLE_TOKENS["assistant"], *"fóur".encode(), END_TOKEN),
        *(ROLE_TOKENS["user"], *b"sure?", END_TOKEN),
        *(ROLE_TOKENS["assistant"], *b"yes", END_TOKEN),
    ]
    ids, learned = Text.load([path], seed=0, longest=len(said)).batch(0, len(said), 1)
    assert ids[0].tolist() == said
    assert decoded(ids[learned]) == "fóuryes".encode()
    assert learned.sum() == 8


def test_text_rows_and_several_files(tmp_path):
    rows = jsonl(tmp_path / "rows.jsonl", {"text": "first"}, {"text": "second", "id": 7})
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"\xef\xbb\xbfthird\r\n")
    said = [*b"first", END_TOKEN, *b"second", END_TOKEN, *b"third\r\n", END_TOKEN]
    ids, learned = Text.load([rows, plain], seed=0, longest=len(said)).batch(0, len(said), 1)
    assert ids[0].tolist() == said
    assert learned.all()


ASSISTANT = {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "empty.txt: the file is empty"),
        ("blank.txt", b" \n\n", "blank.txt: the file is empty"),
        ("empty.jsonl", b"\n\n", "empty.jsonl: the file is empty"),
        ("a.bin", b"abc\0def", "a.bin: binary, not text (a zero byte at offset 3)"),
        ("latin.txt", b"caf\xe9 au lait", "latin.txt: not UTF-8 text (at offset 3)"),
        ("b.jsonl", b'{"text": "a"}\n{oops\n', "b.jsonl:2: not JSON"),
        ("c.jsonl", b'{"text": "a"}\n\n["a"]\n', "c.jsonl:3: expected"),
        ("d.jsonl", b'{"txt": "a"}\n', "d.jsonl:1: expected"),
        ("e.jsonl", b'{"text": 3}\n', "e.jsonl:1: expected"),
        ("f.jsonl", b'{"messages": []}\n', "f.jsonl:1: expected"),
        ("g.jsonl", b'{"messages": [{"role": "robot", "content": "a"}]}\n', "g.jsonl:1: a message"),
        ("h.jsonl", b'{"messages": [{"role": "user"}]}\n', "h.jsonl:1: a message needs"),
        ("i.jsonl", b'{"messages": ["hello"]}\n', "i.jsonl:1: a message needs"),
        ("j.jsonl", b'{"text": "\\ud800"}\n', "j.jsonl:1: half a surrogate pair"),
        ("k.jsonl", b"[" * 100_000, "k.jsonl:1: not JSON"),
        ("short.txt", b"abc", "short.txt: 4 tokens of text, but a sequence takes 64"),
        (
            "user.jsonl",
            json.dumps({"messages": [{"role": "user", "content": "a" * 99}]}).encode(),
            "user.jsonl: no two assistant tokens in a row to learn from",
        ),
    ],
)
def test_bad_data_is_named_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Text.load([path], seed=0, longest=64)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"), [("missing.txt", "No such file"), (".", "Is a directory")]
)
def test_a_path_that_cannot_be_read_is_named(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        Text.load([tmp_path / name], seed=0, longest=64)


runs = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12)


@given(runs, st.integers(2, 40), st.integers(0, 9), st.integers(0, 60))
def test_every_window_is_true_to_the_stream_and_has_room_for_an_anchor(runs, length, seed, at):
    """Against the stream written out in full, before and after it is split."""
    whole, is_learned = Stream(), []
    for size, learned in runs:
        whole.append(range(len(whole), len(whole) + size), learned=learned)
        is_learned += [learned] * size
    before, behind = whole.split(min(at, len(whole)))
    for stream, offset in ((whole, 0), (before, 0), (behind, len(before))):
        mask = is_learned[offset : offset + len(stream)]
        pairs = sum(a and b for a, b in pairwise(mask))
        assert stream.pairs == pairs
        if not pairs or len(stream) < length:
            continue
        ids, learned = stream.window(length, random.Random(seed))
        start = int(ids[0]) - offset
        assert ids.tolist() == list(range(start + offset, start + offset + length))
        assert learned.tolist() == mask[start : start + length]
        assert (learned[:-1] & learned[1:]).any()


def test_every_place_for_an_anchor_comes_up():
    stream = Stream()
    for size, learned in ((3, False), (2, True), (4, False), (3, True), (1, True)):
        stream.append(range(len(stream), len(stream) + size), learned=learned)
    rng = random.Random(0)
    seen = set()
    for _ in range(300):
        ids, learned = stream.window(2, rng)
        assert learned.all()
        seen.add(int(ids[0]))
    assert seen == {3, 9, 10, 11}


def test_seeds_differ_by_purpose_and_fit_a_generator():
    seeds = {seeded(s, p, n) for s in (0, 1) for p in ("train", "anchors") for n in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeded(0, "train", 1) == 5616652951175793923  # the same on every machine


def test_ids_of_large_vocabularies_are_kept():
    stream = Stream([151_668, 248_319], [(0, 2)])
    stream.append([1 << 30], learned=False)
    ids, learned = stream.window(3, random.Random(0))
    assert ids.tolist() == [151_668, 248_319, 1 << 30]
    assert learned.tolist() == [True, True, False]


def test_documents_are_written_by_the_tokens_that_are_given(tmp_path):
    tokens = dataclasses.replace(ByteTokens(), end_id=90_000, pad_id=80_000)
    (tmp_path / "a.txt").write_text("first")
    jsonl(tmp_path / "b.jsonl", {"text": "second"})
    said = [*b"first", 90_000, *b"second", 90_000]
    text = Text.load([tmp_path / "a.txt", tmp_path / "b.jsonl"], 0, len(said), tokens)
    ids, _ = text.batch(0, len(said), 1, padded_length=len(said) + 2)
    assert ids[0].tolist() == [*said, 80_000, 80_000]


def test_a_digest_tells_texts_apart_by_tokens_and_by_what_is_learned(tmp_path):
    texts = [[["user", "ab"], ["assistant", "cd"]], [["assistant", "ab"], ["user", "cd"]]]
    digests = []
    for number, messages in enumerate(texts):
        rows = [{"role": role, "content": content} for role, content in messages]
        path = jsonl(tmp_path / f"{number}.jsonl", {"messages": rows})
        digests.append(Text.load([path], 0, 8).digest)
    # Another seed draws other windows of the same text.
    assert Text.load([tmp_path / "1.jsonl"], 5, 8).digest == digests[1]
    alike = [Stream(range(9), learned) for learned in ([(0, 9)], [(0, 8)], [(0, 4), (4, 9)])]
    digests += [Text(stream, 0, 9, ByteTokens()).digest for stream in alike]
    assert len(set(digests)) == 5
    assert all(len(digest) == 32 for digest in digests)
    known = Text(Stream(range(9), [(0, 9)]), 0, 9, ByteTokens()).digest
    assert known == digests[2] == "aa268606d1024dbbc3a4f5ace23454bb"  # the same on every machine
