"""Tokens: what goes in comes out, and nothing else goes in."""

import string
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_min.errors import UsageError
from harness.schedule.plan import Delays, Priorities, parse_plan
from harness.schedule.token import (
    Versions,
    check_versions,
    dump_token,
    parse_token,
    relative_argv,
    token_of,
)

from .test_plan import FX, plans

ALPHABET = string.ascii_letters + string.digits + "-_."
HERE = Versions(harness="0.1.0", torch="2.13.0+cpu", triton="3.6.0", python="3.11.7")

versions = st.builds(Versions, *[], **{f: st.text() for f in Versions.__struct_fields__})
schedules = st.one_of(
    plans,
    st.builds(
        Priorities,
        st.integers(0, 2**62),
        st.integers(1, 64),
        st.integers(1, 10**6),
        st.integers(1, 8),
    ),
    st.builds(Delays, st.integers(0, 2**62)),
)
tokens = st.builds(
    lambda schedule, versions, command, argv, cache: (
        schedule,
        token_of(schedule, versions=versions, command=command, argv=argv, cache=cache),
    ),
    schedules,
    versions,
    st.sampled_from(["run", "watch"]),
    st.lists(st.text(), max_size=6),
    st.sampled_from(["cold", "kept"]),
)


def fx_token(**changes):
    token = token_of(
        parse_plan(FX, name="fx-flag"),
        versions=HERE,
        command="run",
        argv=["--threads", "3", "--warmup", "no_grad"],
    )
    return msgspec.structs.replace(token, **changes)


@given(tokens)
def test_a_token_reads_back(pair) -> None:
    schedule, token = pair
    text = dump_token(token)
    assert set(text) <= set(ALPHABET)
    assert parse_token(text) == token
    back = parse_token(text).schedule
    # A note is for people and stays behind.
    assert back.for_child() == schedule.for_child()


def test_a_token_may_come_out_of_a_mail() -> None:
    text = dump_token(fx_token())
    broken = "\n  ".join(text[i : i + 30] for i in range(0, len(text), 30))
    assert parse_token(f"  {broken}\n") == fx_token()


def test_every_truncation_is_refused_as_one() -> None:
    text = dump_token(fx_token())
    for size in range(1, len(text)):
        with pytest.raises(UsageError, match="cut short"):
            parse_token(text[:size])


def test_every_single_altered_character_is_refused() -> None:
    text = dump_token(fx_token())
    said = set()
    for at in range(len(text)):
        for character in {*ALPHABET, " ", "\u00e9", "\u0661"} - {text[at]}:
            with pytest.raises(UsageError) as caught:
                parse_token(text[:at] + character + text[at + 1 :])
            assert "\n" not in str(caught.value)
            said.add(str(caught.value).split(":")[0])
    assert {"this is no token", "the token was altered"} <= said


@settings(max_examples=300, deadline=None)
@given(tokens, st.data())
def test_any_truncated_or_altered_token_is_refused(pair, data) -> None:
    text = dump_token(pair[1])
    at = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(exclude_characters=text[at]))
    for wrong in (text[:at], text[:at] + character + text[at + 1 :], text[at + 1 :]):
        with pytest.raises(UsageError):
            parse_token(wrong)


@given(st.text())
def test_any_other_text_is_refused(text) -> None:
    with pytest.raises(UsageError):
        parse_token(text)


def test_another_schema_is_named() -> None:
    text = dump_token(fx_token()).replace("crh1.", "crh2.", 1)
    with pytest.raises(UsageError, match="the token has schema 2, this version reads schema 1"):
        parse_token(text)


def test_a_whole_token_with_a_hold_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="holds no schedule: there is no point 'nap'"):
        parse_token(dump_token(fx_token(holds=("A:nap:enter", "B:step:enter"))))


def test_another_torch_minor_needs_the_flag() -> None:
    token = fx_token()
    there = msgspec.structs.replace(HERE, torch="2.11.0+cu130")
    with pytest.raises(
        UsageError, match=r"of torch 2\.13\.0\+cpu, here is torch 2\.11\.0"
    ) as caught:
        check_versions(token, there, cross_version=False)
    assert "--cross-version" in str(caught.value)
    assert check_versions(token, there, cross_version=True) == (
        "the token is of torch 2.13.0+cpu, here is 2.11.0+cu130",
    )


def test_another_patch_version_is_only_said() -> None:
    there = msgspec.structs.replace(HERE, torch="2.13.1", python="3.12.1", triton="")
    said = check_versions(fx_token(), there, cross_version=False)
    assert said == (
        "the token is of torch 2.13.0+cpu, here is 2.13.1",
        "the token is of triton 3.6.0, here is none",
        "the token is of python 3.11.7, here is 3.12.1",
    )
    assert check_versions(fx_token(), HERE, cross_version=False) == ()


def test_no_torch_here_is_another_version() -> None:
    with pytest.raises(UsageError, match="here is no torch"):
        check_versions(fx_token(), Versions(), cross_version=False)


def test_paths_below_the_project_become_relative(tmp_path) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    words = [str(project / "train.py"), "--data", str(project / "data"), "/etc/hosts", "-v"]
    assert relative_argv(words, project) == ("train.py", "--data", "data", "/etc/hosts", "-v")
    assert relative_argv([str(project)], Path(project)) == (".",)
    assert relative_argv([f"{project}-other/x"], project) == (f"{project}-other/x",)
