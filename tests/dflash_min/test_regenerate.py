"""Training text that the target goes on with."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import pytest
import torch

from dflash_min import regenerate, stopping
from dflash_min.config import END_TOKEN, TrainConfig
from dflash_min.data import Text
from dflash_min.decoding.speculate import Decoding, Nothing, Sampler
from dflash_min.resolve import resolve
from dflash_min.targets import folder as target_folder
from dflash_min.targets.builtin import Target
from dflash_min.tokens import ByteTokens
from tests.dflash_min.test_pretrain import CONFIG

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target whose likeliest tokens are letters, so that it says text."""
    target = Target(CONFIG, seed=1)
    with torch.no_grad():
        target.lm_head.weight[128:] = 0.0
        target.lm_head.weight[:32] = 0.0
        target.lm_head.weight[32:128] *= 4.0
    path = tmp_path_factory.mktemp("made") / "target"
    target_folder.save(target, path, {})
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"line {n % 7} of the text\n" for n in range(100)))
    return path


def run(folder, data, out, *words) -> None:
    sizes = ("--windows", "10", "--batch-size", "4", "--prompt-tokens", "16", "--new-tokens", "12")
    names = ("--target", str(folder), "--data", str(data), "--out", str(out))
    regenerate.main(["--device", "cpu", *names, *sizes, *words])


def texts(path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_each_text_is_a_window_and_what_the_target_adds_to_it(
    folder, data, tmp_path, capsys, temperature
) -> None:
    out = tmp_path / "new" / "said.jsonl"
    run(folder, data, out, "--temperature", temperature)
    said = texts(out)
    assert capsys.readouterr().out.startswith(f"{len(said)} texts in ")
    target = target_folder.load(folder, CONFIG, "cpu")
    windows = Text.load([data], 0, 16)
    expected = []
    for number, count in enumerate((4, 4, 2)):
        for row, prompt in enumerate(windows.batch(number, 16, count)[0].tolist()):
            seed = regenerate.text_seed(0, 4 * number + row)
            sampler = Sampler(float(temperature), seed)
            added = Decoding(target, Nothing(), prompt, 12, sampler=sampler).run()
            start = windows.starts(number, 16, count)[row]
            expected.append((start, ByteTokens().decode([*prompt, *added])))
    expected.sort(key=lambda placed: placed[0])
    assert said == [text for _, text in expected if "\N{REPLACEMENT CHARACTER}" not in text]
    assert len(said) > 3


def test_the_end_of_the_file_is_another_stretch_of_the_text(folder, tmp_path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n:07}\n" for n in range(200)))
    run(folder, path, tmp_path / "said.jsonl", "--windows", "60")
    starts = [path.read_text().index(text[:16]) for text in texts(tmp_path / "said.jsonl")]
    assert len(starts) > 40
    tail = round(0.9 * len(starts))
    assert max(starts[:tail]) <= min(starts[tail:])


def test_a_trainer_takes_it_as_text(folder, data, tmp_path) -> None:
    out = tmp_path / "said.jsonl"
    run(folder, data, out)
    resolved = resolve(TrainConfig(device="cpu", target=str(folder), data=(out,), layers=1), 0)
    assert len(Text.load(resolved.data, 0, 64)._train) > 64


def test_a_text_ends_where_the_target_ends_it() -> None:
    class Ending:
        """Says 7, 7, the end, and on."""

        embed_VD = torch.zeros(1)  # noqa: N815

        def cache(self, batch):
            self.said = iter([7, 7, END_TOKEN, 7, 7])

        def extend(self, ids, cache):
            logits = torch.zeros(*ids.shape, 300)
            logits[..., next(self.said)] = 1.0
            return logits, None

    prompts = torch.tensor([[1, 2], [END_TOKEN, 3]])
    said = regenerate.continued(Ending(), prompts, 5, [Sampler(), Sampler()], END_TOKEN)
    assert said == [[1, 2, 7, 7], [END_TOKEN, 3, 7, 7]]
    said = regenerate.continued(Ending(), prompts, 2, [Sampler(), Sampler()], END_TOKEN)
    assert said == [[1, 2, 7, 7], [END_TOKEN, 3, 7, 7]]  # the end in the prompt is none


def test_where_no_text_is_whole_that_is_said_and_an_error(
    folder, data, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(regenerate, "_texts", lambda *args: [(n, "half \ufffd") for n in range(5)])
    monkeypatch.setattr(regenerate, "time", SimpleNamespace(monotonic=lambda: 0.0))
    with pytest.raises(SystemExit) as caught:
        run(folder, data, tmp_path / "said.jsonl")
    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "dflash_min.regenerate: error: 0 texts in 0 s, 5 dropped that are not whole UTF-8; "
        "nothing is saved\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_half_a_character_leaves_its_text_out(folder, tmp_path, capsys) -> None:
    path = tmp_path / "text.txt"
    path.write_text("é" * 200)
    run(folder, path, tmp_path / "said.jsonl", "--windows", "40")
    said = texts(tmp_path / "said.jsonl")
    assert 0 < len(said) < 40  # about half of the windows begin within a character
    assert f"{40 - len(said)} dropped that are not whole UTF-8; saved " in capsys.readouterr().out
    assert all(text.startswith("é" * 8) for text in said)


@pytest.mark.parametrize(
    ("done", "said"),
    [(0, "0 texts in 0 s; nothing is saved"), (1, "4 texts in 0 s; saved {out}")],
)
def test_a_signal_keeps_what_is_done(
    folder, data, tmp_path, monkeypatch, capsys, done, said
) -> None:
    ended = []
    out = tmp_path / "said.jsonl"
    monkeypatch.setattr(stopping, "end_by", ended.append)
    monkeypatch.setattr(regenerate, "time", SimpleNamespace(monotonic=lambda: 0.0))
    made = regenerate._texts

    def interrupted(*args):
        if done == 0:
            signal.raise_signal(signal.SIGTERM)
        for count, each in enumerate(made(*args), start=1):
            if count == done:
                signal.raise_signal(signal.SIGTERM)
            yield each

    monkeypatch.setattr(regenerate, "_texts", interrupted)
    before = {each: signal.getsignal(each) for each in stopping.SIGNALS}
    try:
        run(folder, data, out)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ended == [signal.SIGTERM]
    assert f"stopped by SIGTERM; {said.format(out=out)}\n" in capsys.readouterr().err
    assert out.exists() == (done > 0)
    assert not done or len(texts(out)) == 4


def test_a_dtype_is_the_targets(folder, data, tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        regenerate,
        "_texts",
        lambda config, target, *rest: seen.append(target.embed_VD.dtype) or [(0, "text")],
    )
    for number, words in enumerate(((), ("--dtype", "bfloat16"))):
        run(folder, data, tmp_path / f"{number}.jsonl", *words)
    assert seen == [torch.float32, torch.bfloat16]


def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    folder, data, tmp_path, capsys, monkeypatch
) -> None:
    def refused(code: int, message: str, *words: str) -> None:
        with pytest.raises(SystemExit) as caught:
            run(folder, data, tmp_path / "said.jsonl", *words)
        assert caught.value.code == code
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1

    refused(2, "--windows must be at least 1, got 0", "--windows", "0")
    refused(2, "--prompt-tokens must be at most 32768", "--prompt-tokens", "1000000")
    refused(2, "--new-tokens must be at most 32768", "--new-tokens", "1000000")
    refused(2, "nowhere: no such folder", "--target", str(tmp_path / "nowhere"))
    with monkeypatch.context() as patched:
        patched.setattr(regenerate.msgspec.json, "encode", lambda row: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(folder, data, tmp_path / "said.jsonl")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "said.jsonl").write_text("mine")
    refused(2, "said.jsonl is there already")
    assert (tmp_path / "said.jsonl").read_text() == "mine"
