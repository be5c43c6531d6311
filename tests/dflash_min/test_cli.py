"""The command line: what it takes, what it gives back, and how it refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_min import cli, config
from dflash_min.config import TrainConfig
from dflash_min.resolve import resolve


def parse(*argv: str) -> TrainConfig:
    return cli.parse(TrainConfig, argv, prog="prog", description="Train.")


@pytest.mark.parametrize(
    "argv",
    [
        ["--seq-lens", "128,160"],
        ["--seq-lens", "128", "160"],
        ["--seq-lens", "128,", "160"],
        ["--seq-lens=128,160"],
        ["--seq-lens", "128, 160"],
    ],
)
def test_lists_take_commas_and_spaces(argv):
    assert parse(*argv) == TrainConfig(seq_lens=(128, 160))


def test_every_kind_of_flag():
    argv = (
        "--threads 2 --targets cuda:0,cuda:1 --drafters cuda:2 cuda:3 --anchors vary --lr=1e-3 "
        "--no-activation-checkpointing --data a,b.txt c.jsonl --warmup no_grad --dynamic auto"
    )
    assert parse(*argv.split()) == TrainConfig(
        threads=2,
        targets=("cuda:0", "cuda:1"),
        drafters=("cuda:2", "cuda:3"),
        anchors="vary",
        lr=1e-3,
        activation_checkpointing=False,
        data=(Path("a,b.txt"), Path("c.jsonl")),
        warmup="no_grad",
        dynamic="auto",
    )
    assert parse("--activation-checkpointing", "--anchors", "31").anchors == 31
    assert parse() == TrainConfig()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--warmup some", "'some' for argument '--warmup'"),
        ("--dynamic yes", "'yes' for argument '--dynamic'"),
        ("--threads three", "--threads: invalid literal for int() with base 10: 'three'"),
        ("--seq-lens 128,x", "--seq-lens: invalid literal for int() with base 10: 'x'"),
        ("--anchors some", "--anchors"),
        ("--lr fast", "--lr"),
        ("--thread 3", "Unrecognized options: --thread, 3"),
        ("script.py", "Unrecognized options: script.py"),
        ("--layout", "--layout"),
        ("--layout ", "--layout is empty"),
        ("--threads 3 --layout=", "--layout is empty"),
        ("", "an argument is empty"),
        ("--data a\x00b", "--data holds a NUL character"),
        ("--bogus \x1b[31m\x07", "Unrecognized options: --bogus, \\x1b[31m\\x07"),
    ],
)
def test_a_command_line_that_does_not_fit_is_one_line_and_code_2(argv, message, capfd):
    with pytest.raises(SystemExit) as stop:
        parse(*argv.split(" "))
    out, err = capfd.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("prog: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_a_long_word_is_not_broken(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    word = "--" + "x" * 300
    with pytest.raises(SystemExit):
        parse(word)
    assert word in capfd.readouterr().err


def test_help_goes_to_stdout_and_names_every_flag(capfd):
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    out, err = capfd.readouterr()
    assert (stop.value.code, err) == (0, "")
    for each in fields(TrainConfig):
        assert f"--{each.name.replace('_', '-')}" in out


def test_help_tells_the_defaults_of_each_device_as_they_are(capfd):
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(line.strip("│ ") for line in capfd.readouterr().out.splitlines())
    text = re.sub(r"(\d,) (?=\d)", r"\1", text)  # lines break within lists, too
    told = re.findall(r"--([a-z-]+) [A-Z](?:(?! --).)*?\(default: CPU (\S+)[,;] GPU (\S+)\)", text)
    for column, gpus in ((1, 0), (2, 1)):
        resolved = resolve(TrainConfig(), gpus)
        for row in told:
            name = row[0].replace("-", "_")
            value = getattr(resolved if hasattr(resolved, name) else resolved.model, name)
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert (name, shown) == (name, row[column])
    assert {row[0] for row in told} >= {"seq-lens", "anchors", "backend", "hidden", "block-size"}


@dataclass(frozen=True)
class Described:
    """Of each kind of default one."""

    device: str | None = None
    """Where it runs (default: the first GPU)."""
    plan: str = ""
    """What is forced."""
    lens: tuple[int, ...] = ()
    """Lengths."""
    files: cli.Files = ()
    """What is read, of which the text is long enough that
    it is told in two lines."""
    timeout: float = 60.0
    """Seconds."""
    roots: tuple[str, ...] = ("a", "b")
    """What is looked for."""


def test_help_tells_a_default_only_where_one_could_be_typed(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.parse(Described, ["--help"], prog="prog", description="As ``prog`` does.")
    lines = capfd.readouterr().out.splitlines()
    assert "As `prog` does." in lines
    texts = [line.strip("│ ").split("  ")[-1].strip() for line in lines if "│ --" in line]
    assert texts == [
        "Where it runs (default: the first GPU).",
        "What is forced.",
        "Lengths.",
        "What is read, of which the text is long enough that it is told in two lines.",
        "Seconds. (default: 60.0)",
        "What is looked for. (default: a,b)",
    ]


@dataclass(frozen=True)
class Watch:
    timeout: float = 60.0
    expect: tuple[str, ...] = ("clean",)
    color: Literal["auto", "never"] | None = None


@dataclass(frozen=True)
class RunSpec:
    train: TrainConfig = field(default_factory=TrainConfig)
    watch: Watch = field(default_factory=Watch)
    out: Path = Path("reports")


def test_groups_are_flat_and_the_way_back_covers_them():
    argv = ["--out", "x", "--threads", "2", "--expect", "CR101,CR303", "--color", "never"]
    spec = cli.parse(RunSpec, argv, prog="run", description="Run.")
    assert spec == RunSpec(
        TrainConfig(threads=2), Watch(expect=("CR101", "CR303"), color="never"), Path("x")
    )
    assert cli.parse(RunSpec, cli.to_argv(spec), prog="run", description="Run.") == spec
    assert cli.to_argv(RunSpec()) == []


lengths = st.lists(st.integers(-3, 9999), max_size=4).map(tuple)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0,"), min_size=1).filter(
    lambda word: word == word.strip()
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
SPECIAL = {
    "threads": st.integers(),
    "layout": words,
    "targets": st.lists(words, max_size=3).map(tuple),
    "drafters": st.lists(words, max_size=3).map(tuple),
    "warmup_lens": lengths,
    "seq_lens": lengths,
    "bucket_lens": lengths,
    "anchors": st.integers() | st.just("vary"),
    "backend": words,
    "data": st.lists(names.map(Path), max_size=3).map(tuple),
    "device": st.sampled_from(get_args(config.DeviceChoice)),
    "warmup": st.sampled_from(get_args(config.WarmupMode)),
    "warmup_devices": st.sampled_from(get_args(config.WarmupDevices)),
    "shapes": st.sampled_from(get_args(config.Shapes)),
    "dynamic": st.sampled_from(get_args(config.Dynamic)),
    "compile_mode": st.sampled_from(get_args(config.CompileMode)),
    "nested_fx": st.sampled_from(get_args(config.NestedFx)),
    "activation_checkpointing": st.booleans(),
    "preset": st.sampled_from(get_args(config.Preset)),
    "dtype": st.sampled_from(get_args(config.Dtype)),
    "exchange": st.sampled_from(get_args(config.Exchange)),
    "fused": st.lists(words, max_size=3).map(tuple),
    "target": words,
    **dict.fromkeys(
        ("lr", "lr_warmup", "weight_decay", "max_grad_norm"), st.floats(allow_nan=False)
    ),
}
configs = st.fixed_dictionaries(
    {}, optional={each.name: SPECIAL.get(each.name, st.integers()) for each in fields(TrainConfig)}
).map(lambda chosen: TrainConfig(**chosen))


@given(configs)
def test_arguments_of_any_settings_parse_back_to_them(settings):
    assert parse(*cli.to_argv(settings)) == settings


@pytest.mark.parametrize(
    "settings",
    [
        TrainConfig(targets=("a,b",)),
        TrainConfig(targets=("",)),
        TrainConfig(targets=(" a",)),
        RunSpec(watch=Watch(timeout=None)),
    ],
)
def test_what_a_command_line_cannot_carry_is_an_error(settings):
    with pytest.raises(ValueError, match="cannot carry"):
        cli.to_argv(settings)
