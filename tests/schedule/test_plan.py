"""Plans and their files."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_min.errors import UsageError
from harness.child.schedule.make import make_scheduler
from harness.child.schedule.order import EDGES, POINTS, Hold
from harness.schedule.plan import (
    Delays,
    Plan,
    Priorities,
    lettered,
    parse_plan,
    read_plan,
    serial,
    write_plan,
)

holds = st.builds(
    Hold,
    st.sampled_from(["main", "t1", "A", "B"]),
    st.sampled_from(POINTS),
    st.sampled_from(EDGES),
    st.integers(1, 20),
)
plans = (
    st.lists(holds, min_size=2, max_size=6)
    .filter(lambda found: len({hold.thread for hold in found}) > 1)
    .flatmap(
        lambda found: st.builds(Plan, st.just(tuple(found)), st.text(), st.text(), st.booleans())
    )
)
FX = ("A:fx_trace:enter", "B:wrapper:enter", "A:fx_trace:exit")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["A:step:enter"], "2 to 6 holds, this one has 1"),
        (["A:step:enter", "B:step:enter"] * 4, "has 8"),
        (["A:step:enter", "A:step:exit"], "all holds are of A"),
        ([f"{letter}:step:enter" for letter in "ABCDE"], "at most 4 threads"),
        (["A:step:enter", "B:sleep:enter"], "there is no point 'sleep'"),
        (["A:step:enter", "B"], "not a hold: 'B'"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(texts, said) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_plan(texts)
    assert "\n" not in str(caught.value)


def test_the_control_has_the_same_holds_thread_by_thread() -> None:
    plan = parse_plan(FX, name="fx-flag")
    control = serial(plan)
    assert control.texts == ("A:fx_trace:enter", "A:fx_trace:exit", "B:wrapper:enter")
    assert control.name == "fx-flag-serial"
    assert control.apart
    assert serial(control) == control


@given(plans)
def test_a_control_is_its_own_control_and_loses_nothing(plan) -> None:
    control = serial(plan)
    assert sorted(control.texts) == sorted(plan.texts)
    assert serial(control).holds == control.holds
    switches = sum(a.thread != b.thread for a, b in pairwise(control.holds))
    assert switches == len(plan.threads) - 1


def test_letters_take_the_place_of_names_and_stay_apart() -> None:
    plan = lettered(parse_plan(["t3:step:enter", "A:step:enter", "main:step:exit", "t1:step:exit"]))
    assert plan.texts == ("B:step:enter", "A:step:enter", "main:step:exit", "C:step:exit")


@given(plans)
def test_a_plan_file_reads_back(tmp_path_factory, plan) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    write_plan(path, plan)
    assert read_plan(path) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("holds = [", "Invalid|Unclosed|Expected|end of doc"),
        ("schema = 2\nholds = []", "it has schema 2, this version reads 1"),
        ("hold = []", "there is no key hold"),
        ("holds = 'A:step:enter'", "holds is a list of texts"),
        ("holds = []", "it has no holds"),
        ("holds = ['A:step:enter', 'B:step:enter']\napart = 1", "apart is true or false"),
        ("holds = ['A:step:enter', 'B:step:enter']\nname = 3", "name and note are texts"),
        ("holds = ['A:step:enter', 'B:stop:enter']", "no point 'stop'"),
    ],
)
def test_a_broken_plan_file_is_named_in_one_line(tmp_path, text, said) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_plan_file_is_an_error_of_use(tmp_path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_plan(tmp_path / "none.toml")


@pytest.mark.parametrize("numbers", [(0, 0, 5, 3), (0, 2, 0, 3), (0, 2, 5, 0), (0, 2, 5, 9)])
def test_numbers_that_pct_cannot_have_are_refused(numbers) -> None:
    with pytest.raises(UsageError):
        Priorities(*numbers)


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        (parse_plan(FX), "Controller"),
        (Priorities(1, 3, 20, 3), "Priorities"),
        (Delays(4), "Delays"),
    ],
)
def test_the_child_takes_what_the_parent_gives(schedule, kind, tmp_path) -> None:
    from harness.child.recorder import Recorder

    made = make_scheduler(Recorder(str(tmp_path)), schedule.for_child(), patience_s=1.0)
    assert type(made).__name__ == kind
