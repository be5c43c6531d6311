"""Named plans, and the flags that ask for schedules."""

import pytest

from dflash_min.errors import UsageError
from harness.schedule.named import NAMED, plan_of
from harness.schedule.options import ScheduleOptions
from harness.schedule.plan import serial, write_plan
from harness.schedule.scheduled import Scheduled, has_masked, token_for
from harness.schedule.token import Versions, parse_token

HERE = Versions(torch="2.13.0", python="3.11.7", harness="0.1.0")


@pytest.mark.parametrize("name", NAMED)
def test_a_plan_is_found_by_its_name_its_file_and_as_its_control(name, tmp_path) -> None:
    plan = plan_of(name)
    assert plan.name == name
    assert plan_of(f"{name}-serial") == serial(plan)
    write_plan(tmp_path / "plan.toml", plan)
    assert plan_of(str(tmp_path / "plan.toml")) == plan


def test_what_is_no_plan_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match=r"no plan stampde; fx-flag, .* or a file \.toml"):
        plan_of("stampde")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "stampede", "explore": 3}, "only one of"),
        ({"explore": -1}, "at least 1"),
        ({"explore": 2, "jobs": 0}, "at least 1"),
        ({"minimise": True}, "--minimise is for what"),
        ({"emit_script": True}, "--emit-script is for what"),
        ({"cross_version": True}, "--schedule-token"),
        ({"schedule": "nothing"}, "no plan nothing"),
        ({"schedule_token": "crh1.240.eNp9"}, "cut short"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        ScheduleOptions(**options).check()


def scheduled(kind="watch", argv=("train.py",), **options):
    return Scheduled(kind, argv, ScheduleOptions(**options), HERE)


def test_a_scheduled_run_is_repeated_by_its_token() -> None:
    command = scheduled(schedule="stampede")
    *words, token = command.replay("harness.watch").split()
    assert words == ["python", "-m", "harness.watch", "--schedule-token"]
    read = parse_token(token)
    assert (read.schedule, read.argv, read.command) == (NAMED["stampede"], ("train.py",), "watch")
    again = scheduled(schedule_token=token)
    assert again.options.asked() == NAMED["stampede"]
    assert again.replay("harness.watch").split()[-1] == token
    assert scheduled().replay("harness.watch") == ""


def test_a_token_holds_no_password_and_is_of_one_command() -> None:
    token = scheduled(argv=("train.py", "--password", "hunter22")).token(NAMED["stampede"])
    assert parse_token(token).argv == ("train.py", "--password", "***")
    assert has_masked(parse_token(token))
    options = ScheduleOptions(schedule_token=token)
    assert token_for(options, "watch") is not None
    with pytest.raises(UsageError, match=r"of harness\.watch"):
        token_for(options, "run")


def test_another_torch_is_refused_and_said(capsys) -> None:
    token = scheduled().token(NAMED["stampede"])
    other = Versions(torch="2.11.0", python="3.11.7", harness="0.1.0")
    options = ScheduleOptions(schedule_token=token)
    with pytest.raises(UsageError, match="--cross-version"):
        Scheduled("watch", (), options, other).check_versions("x")
    crossed = ScheduleOptions(schedule_token=token, cross_version=True)
    Scheduled("watch", (), crossed, other).check_versions("x")
    assert "the token is of torch 2.13.0, here is 2.11.0" in capsys.readouterr().err
