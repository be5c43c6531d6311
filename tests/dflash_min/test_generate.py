"""Generation by its command, from checkpoints and exported drafters."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from dflash_min import export, generate, stopping
from dflash_min.config import END_TOKEN, ModelConfig
from dflash_min.decoding.speculate import Decoding, Nothing
from dflash_min.decoding.text_stream import TextStream, harmless
from dflash_min.model import Drafter
from dflash_min.saving import checkpoint
from dflash_min.saving.checkpoint import Record
from dflash_min.targets import folder as target_folder
from dflash_min.targets.builtin import Target
from dflash_min.tokens import ByteTokens

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CONFIG = ModelConfig(
    hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, layers=2, target_layers=5, block_size=4
)
FIGURES = re.compile(
    r"dflash_min\.generate: (\d+) tokens, tau (\d\.\d\d): [\d,.]+ tokens/s, plain [\d,.]+, "
    r"speed-up \d+\.\d\d\n"
)


@pytest.fixture
def saved(tmp_path):
    """A run folder of an untrained drafter for a target of random weights."""
    record = Record(step=3, seed=2, target="", config=CONFIG, settings={}, digests={})
    drafter = Drafter(CONFIG, seed=9)
    folder = tmp_path / "run" / checkpoint.FOLDER
    checkpoint.write(folder, record, drafter.state_dict(), {})
    return tmp_path / "run"


def plain_ids(prompt: str, count: int) -> list[int]:
    target, ids = Target(CONFIG, seed=2), ByteTokens().encode(prompt)
    return Decoding(target, Nothing(), ids, count, END_TOKEN).run()


def plain_text(prompt: str, count: int) -> str:
    return harmless(ByteTokens().decode(plain_ids(prompt, count)))


def run(path, *words) -> None:
    generate.main([str(path), "--device", "cpu", *words])


def test_the_text_is_the_targets_and_one_line_gives_the_figures(saved, capsys) -> None:
    run(saved, "--prompt", "def f(", "--max-tokens", "40")
    said = capsys.readouterr()
    assert said.out == plain_text("def f(", 40) + "\n"
    found = FIGURES.fullmatch(said.err)
    assert found, said.err
    assert found[1] == "40"


def test_a_single_checkpoint_and_another_block_size_will_do(saved, capsys) -> None:
    path = checkpoint.latest(saved)
    run(path, "--prompt", "x", "--max-tokens", "12", "--block-size", "2")
    assert capsys.readouterr().out == plain_text("x", 12) + "\n"


def test_target_and_drafter_have_the_dtype_that_is_asked_for(saved, capsys, monkeypatch) -> None:
    seen = []

    def dtypes(config, loaded, stopped):
        seen.append((loaded.target.embed_VD.dtype, loaded.drafter.fc.weight.dtype))
        return "done"

    monkeypatch.setattr(generate, "_generate", dtypes)
    for words in ((), ("--dtype", "bfloat16")):
        run(saved, "--prompt", "x", *words)
    assert seen == [(torch.float32,) * 2, (torch.bfloat16,) * 2]


def test_an_exported_drafter_needs_its_target_named(saved, tmp_path, capsys) -> None:
    target_folder.save(Target(CONFIG, seed=2), tmp_path / "target", {})
    export.save(tmp_path / "out", CONFIG, Drafter(CONFIG).state_dict(), dtype=torch.bfloat16)
    with pytest.raises(SystemExit) as caught:
        run(tmp_path / "out", "--prompt", "x")
    assert caught.value.code == 2
    assert "an exported drafter needs --target" in capsys.readouterr().err
    words = ("--prompt", "x", "--max-tokens", "12", "--target", str(tmp_path / "target"))
    run(tmp_path / "out", *words)
    assert capsys.readouterr().out == plain_text("x", 12) + "\n"


def test_a_target_of_other_sizes_is_refused_by_both(saved, tmp_path, capsys) -> None:
    other = dataclasses.replace(CONFIG, hidden=32)
    target_folder.save(Target(other), tmp_path / "target", {})
    with pytest.raises(SystemExit):
        run(saved, "--prompt", "x", "--target", str(tmp_path / "target"))
    message = "drafts for a target with hidden 16, and "
    assert re.search(f"{message}.*target has 32", capsys.readouterr().err)


def test_the_built_in_target_is_not_shared_among_threads_unless_asked(saved) -> None:
    for words, threads in (((), 1), (("--threads", "3"), 3)):
        torch.set_num_threads(2)
        run(saved, "--prompt", "x", "--max-tokens", "2", *words)
        assert torch.get_num_threads() == threads


def test_a_seed_draws_one_text_and_another_seed_another(saved, capsys) -> None:
    texts = []
    for seed, slots in ((1, 4), (1, 2), (2, 4)):
        words = ("--temperature", "1", "--seed", str(seed), "--block-size", str(slots))
        run(saved, "--prompt", "x", "--max-tokens", "30", *words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--temperature", "-1"], "--temperature must be at least 0, got -1.0"),
        (["--temperature", "nan"], "--temperature must be at least 0, got nan"),
        (["--block-size", "1"], "--block-size must be at least 2, got 1"),
    ],
)
def test_what_cannot_be_run_is_one_line(saved, capsys, words, message) -> None:
    with pytest.raises(SystemExit) as caught:
        run(saved, "--prompt", "x", *words)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"dflash_min.generate: error: {message}\n")


def test_a_folder_without_a_checkpoint_is_one_line(tmp_path, capsys) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit) as caught:
            run(path, "--prompt", "x")
        assert caught.value.code == 2
        said = capsys.readouterr().err
        assert str(path) in said
        assert said.count("\n") == 1


def ending(monkeypatch) -> list[signal.Signals]:
    """Note by which signal the process would end, and go on."""
    ended: list[signal.Signals] = []

    def end_by(number: signal.Signals) -> None:
        ended.append(number)
        raise SystemExit

    monkeypatch.setattr(stopping, "end_by", end_by)
    return ended


def test_ctrl_c_leaves_the_text_so_far_and_its_tau(saved, capsys, monkeypatch) -> None:
    ended, stream = ending(monkeypatch), Decoding.stream

    def interrupted(self):
        for number, piece in enumerate(stream(self)):
            if number == 3 and self.max_tokens == 500:
                signal.raise_signal(signal.SIGINT)
            yield piece

    monkeypatch.setattr(Decoding, "stream", interrupted)
    before = {each: signal.getsignal(each) for each in stopping.SIGNALS}
    try:
        with pytest.raises(SystemExit):
            run(saved, "--prompt", "x", "--max-tokens", "500")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ended == [signal.SIGINT]
    said = capsys.readouterr()
    assert re.fullmatch(
        r"dflash_min\.generate: stopped by SIGINT; \d+ tokens, tau \d\.\d\d\n", said.err
    )
    assert said.out.endswith("\n")
    # Three cycles and the prompt's run: a block commits four tokens at most.
    begun = [harmless(ByteTokens().decode(plain_ids("x", 13)[:count])) for count in range(4, 14)]
    assert said.out.removesuffix("\n") in begun


def test_a_reader_that_is_gone_ends_it_as_it_ends_any_filter(saved, monkeypatch) -> None:
    ended = ending(monkeypatch)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as gone:
        monkeypatch.setattr("sys.stdout", gone)
        with pytest.raises(SystemExit):
            run(saved, "--prompt", "x", "--max-tokens", "50")
        monkeypatch.undo()
        assert ended == [signal.SIGPIPE]
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), gone.fileno())  # closing flushes what is left


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_of_several_bytes_come_whole(size) -> None:
    text = "añ€😀b\n\tß"
    stream, ids = TextStream(ByteTokens()), list(text.encode())
    pieces = [stream.add(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join([*pieces, stream.end()]) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_bytes_that_are_no_text_are_replaced_as_decoding_all_at_once_does() -> None:
    ids = [*b"a\xff\xfeb\xe2\x82", END_TOKEN, *b"c\xf0\x9f"]
    stream = TextStream(ByteTokens())
    pieces = [stream.add([token]) for token in ids]
    assert "".join([*pieces, stream.end()]) == ByteTokens().decode(ids)


class Words:
    """A tokenizer whose first word has no space before it."""

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


def test_a_space_that_depends_on_the_word_before_is_kept() -> None:
    stream = TextStream(Words())
    assert "".join([stream.add([1, 2]), stream.add([3]), stream.add([4]), stream.end()]) == (
        "w1 w2 w3 w4"
    )


def test_terminal_codes_are_shown_and_not_sent() -> None:
    assert harmless("a\x1b[2J\r\x00é\tb\n") == "a\\x1b[2J\\r\\x00é\tb\n"
