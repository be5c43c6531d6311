"""Which schedules are run, and in which order."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.build import diagnose
from harness.schedule.arrivals import Arrival, Places, arrivals, collapse
from harness.schedule.forcing import _going_on, forcing_plans
from harness.schedule.plan import Delays, Priorities, parse_plan
from harness.schedule.strategies.chaos import Chaos
from harness.schedule.strategies.enumerate import Enumerate
from harness.schedule.strategies.given import Given
from harness.schedule.strategies.pct import Pct
from harness.schedule.strategies.serial import Serial
from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script

RECORDINGS = Path(__file__).parent.parent / "recordings"
FX = ("A:fx_trace:enter", "B:wrapper:enter", "A:fx_trace:exit")


def at(thread, point, edge, t, *, warm=True):
    return Arrival(thread, point, edge, t, warm, seq=t)


RACE = [
    at("main", "wrapper", "enter", 1, warm=False),
    at("main", "fx_trace", "enter", 2, warm=False),
    at("t1", "wrapper", "enter", 10),
    at("t1", "fx_trace", "enter", 11),
    at("t1", "fx_trace", "exit", 12),
    at("t2", "wrapper", "enter", 13),
    at("t2", "wrapper", "enter", 14),
    at("t3", "wrapper", "enter", 15),
]


def texts(strategy):
    return [plan.texts for plan in strategy.schedules()]


def test_a_thread_inside_a_trace_while_another_reads_comes_first() -> None:
    found = texts(Enumerate(RACE, max_holds=3))
    assert found[0] == ("t1:fx_trace:enter", "t2:wrapper:enter")
    assert len(found[0]) == 2
    three = [plan for plan in found if len(plan) == 3]
    assert three[0] == ("t1:fx_trace:enter", "t2:wrapper:enter", "t1:fx_trace:exit")
    assert [len(plan) for plan in found] == sorted(len(plan) for plan in found)


def test_nothing_is_run_twice_and_nothing_runs_that_makes_nobody_wait() -> None:
    strategy = Enumerate(RACE, max_holds=4)
    plans = list(strategy.schedules())
    assert len({plan.texts for plan in plans}) == len(plans)
    for plan in plans:
        assert len(plan.threads) > 1
        runs = [hold.thread for hold in plan.holds]
        assert runs[0] != runs[1]  # two of one thread at the beginning are one
        assert runs[-1] != runs[-2]
        assert not any(len(set(runs[n : n + 3])) == 1 for n in range(len(runs) - 2))


def test_threads_that_did_the_same_stand_for_each_other() -> None:
    found = texts(Enumerate(RACE, max_holds=2))
    assert ("t1:fx_trace:enter", "t2:wrapper:enter") in found
    assert ("t1:fx_trace:enter", "t3:wrapper:enter") not in found
    assert ("t2:wrapper:enter", "t3:wrapper:enter") in found
    assert ("t3:wrapper:enter", "t2:wrapper:enter") not in found


def test_the_warm_up_is_left_alone_and_the_bound_holds() -> None:
    strategy = Enumerate(RACE, max_holds=4, bound=7)
    assert len(texts(strategy)) == 7
    assert not any("main" in " ".join(plan) for plan in texts(Enumerate(RACE, max_holds=3)))
    assert "the first 7 of them" in strategy.describe()


def test_two_small_threads_have_exactly_these_orders() -> None:
    """By hand: x and x' of one thread, y of another, up to four holds."""
    small = [
        at("t1", "fx_trace", "enter", 1),
        at("t1", "fx_trace", "exit", 2),
        at("t2", "wrapper", "enter", 3),
    ]
    x, x2, y = "t1:fx_trace:enter", "t1:fx_trace:exit", "t2:wrapper:enter"
    assert set(texts(Enumerate(small, max_holds=4))) == {
        (x, y),
        (x2, y),
        (y, x),
        (y, x2),
        (x, y, x2),
    }


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["main", "t1", "t2", "A"]),
            st.sampled_from(["wrapper", "fx_trace", "block_mask"]),
            st.sampled_from(["enter", "exit"]),
        ),
        max_size=14,
    ),
    st.integers(2, 4),
)
def test_every_plan_names_what_was_reached_in_each_threads_own_order(places, size) -> None:
    found = [at(*place, t) for t, place in enumerate(places, 1)]
    strategy = Enumerate(found, max_holds=size, bound=40)
    assert texts(strategy) == texts(Enumerate(found, max_holds=size, bound=40))
    for plan in strategy.schedules():
        left = {thread: [a for a in found if a.thread == thread] for thread in plan.threads}
        for hold in plan.holds:
            own = left[hold.thread]
            hits = [n for n, a in enumerate(own) if a.place == (hold.point, hold.edge)]
            assert len(hits) >= hold.nth
            left[hold.thread] = own[hits[hold.nth - 1] + 1 :]


@given(st.lists(st.sampled_from(["t1", "t2", "t3"]), max_size=12))
def test_collapsing_keeps_every_order_between_threads(threads) -> None:
    picked = [at(thread, "step", "enter", t) for t, thread in enumerate(threads, 1)]

    def orders(chosen):
        """Who waits for whom, and what follows from it by each thread's own order."""
        before = set()
        for number, late in enumerate(chosen):
            for early in chosen[:number]:
                if early.thread != late.thread:
                    before |= {
                        (a.t, b.t)
                        for a in picked
                        for b in picked
                        if a.thread == early.thread
                        and b.thread == late.thread
                        and a.t <= early.t
                        and b.t >= late.t
                    }
        return before

    assert orders(collapse(picked)) == orders(picked)
    assert collapse(collapse(picked)) == collapse(picked)


def test_pct_prints_its_guarantee_with_its_numbers() -> None:
    strategy = Pct(threads=3, points=20, depth=3, seed=5)
    assert "n=3 threads, k=20 arrivals, d=3" in strategy.describe()
    assert strategy.describe().endswith("1/(n*k^(d-1)) = 1/1200")
    found = strategy.schedules()
    assert [next(found), next(found)] == [Priorities(5, 3, 20, 3), Priorities(6, 3, 20, 3)]
    assert strategy.chance(0) == 0
    assert strategy.chance(1) == pytest.approx(1 / 1200)
    assert strategy.chance(1200) == pytest.approx(0.632, abs=0.001)


def test_pct_takes_its_numbers_from_a_recording() -> None:
    assert next(Pct.of(RACE, depth=2).schedules()) == Priorities(0, 3, 6, 2)
    assert next(Pct.of([]).schedules()) == Priorities(0, 1, 1, 3)


def test_the_others() -> None:
    plan = parse_plan(FX)
    assert list(Given(plan, 2).schedules()) == [plan, plan]
    assert texts(Serial(plan)) == [("A:fx_trace:enter", "A:fx_trace:exit", "B:wrapper:enter")]
    chaos = Chaos(9).schedules()
    assert [next(chaos), next(chaos)] == [Delays(9), Delays(10)]
    assert "no guarantee" in Chaos(9).describe()


def test_arrivals_of_a_real_recording() -> None:
    found = arrivals(Recording(RECORDINGS / "grad_mode"))
    assert {a.thread for a in found} == {"main", "t1", "t2", "t3"}
    assert not any(a.after_warmup for a in found if a.thread == "main")
    assert all(a.after_warmup for a in found if a.thread != "main")
    assert {a.point for a in found} == {
        "wrapper",
        "guard_miss",
        "lock_wait",
        "dynamo_compile",
        "fx_trace",
    }


def test_threads_that_the_program_did_not_start_are_letters(tmp_path) -> None:
    script = Script(tmp_path / "run")
    script.names[MAIN + 9] = "pt_autograd_0"
    script.add("backward_compile", MAIN + 9, {}, edge="enter")
    script.add("wrapper", MAIN, {})
    script.add("thread_start", MAIN, {"child_tid": MAIN + 2, "name": "late", "number": 7})
    script.add("wrapper", MAIN + 2, {})
    found = arrivals(Recording(script.finish()))
    assert [a.thread for a in found] == ["A", "main", "t7"]


def test_threads_beyond_the_letters_are_none_that_a_hold_can_name(tmp_path) -> None:
    script = Script(tmp_path / "run")
    for number in range(30):
        script.names[MAIN + 10 + number] = f"pt_autograd_{number}"
        script.add("wrapper", MAIN + 10 + number, {})
    found = arrivals(Recording(script.finish()))
    assert "".join(a.thread for a in found) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_a_reader_is_waited_for_until_it_has_gone_on(tmp_path) -> None:
    inside = [
        at("t1", "dynamo_compile", "enter", 1),
        at("t2", "wrapper", "enter", 2),
        at("t2", "wrapper", "enter", 3),
        at("t1", "dynamo_compile", "exit", 4),
    ]
    places = Places(inside)
    assert _going_on(places, inside[:2], inside[3:]) == [inside[2]]
    assert _going_on(places, [inside[0], inside[2]], inside[3:]) == []


def test_a_hold_that_was_passed_is_an_arrival_at_that_time(tmp_path) -> None:
    script = Script(tmp_path / "run")
    one, two, three = MAIN + 1, MAIN + 2, MAIN + 3
    script.names |= {one: "one", two: "two", three: "three"}
    for tid in (one, two, three):
        script.add("thread_start", MAIN, {"child_tid": tid, "name": script.names[tid]})
    script.add("wrapper", two, {})  # the event comes first, then the thread waits
    script.add("hold", one, {"number": 0, "hold": "A:fx_trace:enter"})
    script.add("fx_trace", one, {"tracer": "T"}, edge="enter")  # the event comes after
    script.add("hold", two, {"number": 1, "hold": "B:wrapper:enter"})
    script.add("hold", three, {"number": 2, "hold": "t3:wrapper:enter"})  # no event at all
    found = arrivals(Recording(script.finish()))
    assert [(a.thread, a.point, a.held) for a in found] == [
        ("t1", "fx_trace", True),
        ("t2", "wrapper", True),
        ("t3", "wrapper", True),
    ]


@pytest.mark.parametrize(
    ("name", "code", "tightest"),
    [
        (
            "fx_flag_in_compile+t211",
            "CR301",
            (
                "t1:dynamo_compile:enter",
                "t2:wrapper:enter#2",
                "t2:wrapper:exit",
                "t1:dynamo_compile:exit",
            ),
        ),
        (
            "block_mask",
            "CR310",
            (
                "t2:dynamo_compile:enter",
                "t1:block_mask:enter#13",
                "t1:block_mask:exit",
                "t2:dynamo_compile:exit",
            ),
        ),
    ],
)
def test_evidence_becomes_holds_with_one_thread_kept_inside(name, code, tightest) -> None:
    recording = Recording(RECORDINGS / name)
    findings = [f for f in diagnose(recording).findings if f.code == code]
    plans = forcing_plans(findings, recording)
    assert plans[0].texts == tightest
    # Where the other thread's leaving cannot be seen, its coming has to do.
    assert plans[1].texts == (tightest[0], tightest[1], tightest[3])
    assert all(len(plan.threads) > 1 for plan in plans)


def read_while_compiling(folder, *, behind_lock):
    """A thread reads ``is_compiling()``, between two points, while another one compiles."""
    script = Script(folder)
    one, two = (script.thread(MAIN + number, f"thread-{number}") for number in (1, 2))
    script.call(two)
    script.begin(one, "0/0")
    script.add("is_compiling", two, {"compiling_tids": [one]})
    if behind_lock:
        script.wait(two, one, "exit")
    else:
        script.call(two)
    script.end(one, "0/0")
    recording = Recording(script.finish())
    findings = [f for f in diagnose(recording).findings if f.code == "CR304"]
    assert findings
    return [plan.texts for plan in forcing_plans(findings, recording)]


def test_what_is_read_between_two_points_is_kept_between_them_with_the_other_inside(
    tmp_path,
) -> None:
    enter, leave = "t1:dynamo_compile:enter", "t1:dynamo_compile:exit"
    plans = read_while_compiling(tmp_path / "run", behind_lock=False)
    assert plans == [(enter, "t2:wrapper:enter", "t2:wrapper:enter", leave)]


def test_nobody_has_to_come_behind_the_lock_while_another_is_inside(tmp_path) -> None:
    assert read_while_compiling(tmp_path / "run", behind_lock=True) == []


def test_a_plans_own_holds_are_kept_and_it_is_the_last_resort() -> None:
    recording = Recording(RECORDINGS / "block_mask")
    own = parse_plan(FX)
    plans = forcing_plans(diagnose(recording).findings, recording, own)
    assert plans[-1] == own
    assert len(plans) == len(set(plans))


def test_the_end_of_a_span_is_that_of_its_own_enter() -> None:
    nested = [
        at("t1", "fx_trace", "enter", 1),
        at("t1", "fx_trace", "enter", 2),
        at("t1", "fx_trace", "exit", 3),
        at("t1", "fx_trace", "exit", 4),
        at("t1", "fx_trace", "enter", 5),
    ]
    places = Places(nested)
    ends = [places.span_end(a) for a in nested if a.edge == "enter"]
    assert [end and end.t for end in ends] == [4, 3, None]
