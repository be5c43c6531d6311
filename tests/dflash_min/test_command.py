"""How commands end that cannot go on: a line on stderr and a code, or a signal."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from dflash_min import __main__ as listing
from dflash_min import cli, export, generate, pretrain, regenerate, stopping, train
from dflash_min.command import command
from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.environment import within_memory
from dflash_min.errors import MemoryLimitError, SaveError, UsageError
from dflash_min.resolve import resolve
from dflash_min.saving import durable, tensors
from dflash_min.saving.run_folder import Beginning, RunFolder

from .failures import disk_that_fills_up

MAINS = [pretrain.main, train.main, export.main, generate.main, regenerate.main]


class Ended(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def ended(monkeypatch) -> list[signal.Signals]:
    signals = []

    def end_by(number):
        signals.append(number)
        raise Ended

    monkeypatch.setattr(stopping, "end_by", end_by)
    return signals


@pytest.fixture
def small_files():
    """No file of more than 1000 bytes, as on a full disk."""
    with disk_that_fills_up() as fill:
        fill(1000)
        yield


@pytest.mark.parametrize("main", MAINS)
def test_help_that_cannot_be_printed_is_one_line(main, monkeypatch, capsys) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as caught:
            main(["--help"])
        full.flush()  # as the interpreter does at its exit
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert said.endswith("error: stdout: No space left on device\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("main", MAINS)
def test_help_whose_reader_is_gone_ends_by_sigpipe_and_says_nothing(
    main, monkeypatch, capsys, ended
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(Ended):
            main(["--help"])
    assert ended == [signal.SIGPIPE]
    assert capsys.readouterr().err == ""


def test_text_that_is_not_buffered_fails_alike(monkeypatch, capsys) -> None:
    @command("prog")
    def main() -> None:
        cli.show("a line")

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "prog: error: stdout: No space left on device\n"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (pretrain, ["--out", "{out}", "--device", "cpu"]),
        (regenerate, ["--out", "{out}", "--target", "x"]),
        (generate, [".", "--prompt", "a"]),
        (train, []),
    ],
)
def test_ctrl_c_before_the_work_is_one_line_and_the_signal(
    module, words, tmp_path, monkeypatch, capsys, ended
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check_torch", interrupted)
    with pytest.raises(Ended):
        module.main([word.format(out=tmp_path / "out") for word in words])
    assert ended == [signal.SIGINT]
    assert capsys.readouterr().err == f"{module.PROG}: stopped by SIGINT\n"
    assert list(tmp_path.iterdir()) == []


def test_a_bug_keeps_its_traceback() -> None:
    @command("prog")
    def main() -> None:
        raise OSError(errno.ENOSPC, "not stdout's")

    with pytest.raises(OSError, match="not stdout's"):
        main()


def test_an_out_is_tried_whole_and_nothing_is_left_of_the_trial(tmp_path, small_files) -> None:
    durable.check_out(tmp_path / "new" / "deeper" / "out", 1000)
    with pytest.raises(SaveError, match=r"takes 0\.0 MB: File too large; nothing was begun"):
        durable.check_out(tmp_path / "new" / "out", 1001)
    with pytest.raises(UsageError, match="--out /proc/x: "):
        durable.check_out(Path("/proc/x"), 0)
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_cannot_be_written_are_an_error_of_the_system(tmp_path, small_files) -> None:
    with pytest.raises(OSError, match="File too large") as caught:
        tensors.write({"a": torch.zeros(1000)}, tmp_path / "file")
    assert caught.value.errno == errno.EFBIG


def test_a_disk_without_room_is_said_before_any_training(
    tmp_path, small_files, monkeypatch, capsys
) -> None:
    from dflash_min.targets.pretraining import Pretraining

    monkeypatch.setattr(Pretraining, "run", lambda *args: pytest.fail("it trains"))
    data = tmp_path / "text"
    for _ in range(4):
        with data.open("a") as file:
            file.write("a line of text\n" * 16)
    sizes = ["--hidden", "16", "--heads", "2", "--kv-heads", "1", "--head-dim", "8", "--mlp", "8"]
    words = ["--steps", "1", "--seq-len", "16", "--target-layers", "1", "--device", "cpu"]
    with pytest.raises(SystemExit) as caught:
        pretrain.main(["--out", str(tmp_path / "out"), "--data", str(data), *sizes, *words])
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert "File too large; nothing was begun" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("command_line", [["--out", "/proc/q", "--target", "x"]])
def test_regenerate_tries_its_file_before_the_target(command_line, monkeypatch, capsys) -> None:
    monkeypatch.setattr(regenerate, "_load", lambda config: pytest.fail("it loads"))
    with pytest.raises(SystemExit) as caught:
        regenerate.main(command_line)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("dflash_min.regenerate: error: --out /proc/q: ")


def test_memory_that_has_run_out_is_one_line_and_other_errors_are_themselves() -> None:
    said = r"^out of memory: .*; smaller --x take less$"
    with pytest.raises(MemoryLimitError, match=said), within_memory("--x"):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shape"), within_memory("--x"):
        torch.zeros(2).view(3)


def test_a_prompt_that_is_no_utf_8_is_one_line(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        generate.main([str(tmp_path), "--prompt", os.fsdecode(b"\xff\xfe")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "dflash_min.generate: error: --prompt is not UTF-8\n"


def test_none_turns_all_pieces_off() -> None:
    fast = resolve(TrainConfig(device="cpu", preset="fast", fused=("none",)), 0)
    assert fast.fused == ()
    with pytest.raises(UsageError, match=r"or none alone; not none$"):
        resolve(TrainConfig(device="cpu", fused=("none", "mask")), 0)


@pytest.mark.parametrize("target", ["hf:/no/model", "hf:./model", "hf:~/a/b"])
def test_a_path_that_is_not_there_is_told_as_it_was_typed(target) -> None:
    with pytest.raises(UsageError, match=f"^--target {target}: no such folder$"):
        resolve(TrainConfig(device="cpu", target=target), 0)


def test_a_negative_mask_token_is_told_its_bound() -> None:
    with pytest.raises(UsageError, match="--mask-token-id must be at least 0, got -1"):
        resolve(TrainConfig(device="cpu", mask_token_id=-1), 0)


def test_metrics_that_cannot_be_opened_are_named(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    opened = RunFolder.opened(SaveConfig(out=tmp_path), Beginning())
    with pytest.raises(UsageError, match=r"metrics\.jsonl: Is a directory"), opened:
        pass


def test_the_package_lists_its_commands(capsys) -> None:
    listing.main([])
    said = capsys.readouterr().out
    for main in MAINS:
        assert f"python -m {main.__module__}\n" in said
    with pytest.raises(SystemExit) as caught:
        listing.main(["train"])
    assert caught.value.code == 2
    assert "python -m dflash_min.train" in capsys.readouterr().err
