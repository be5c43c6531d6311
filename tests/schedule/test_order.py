"""The order that holds ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.child.schedule.order import EDGES, POINTS, Hold, Order

holds = st.builds(
    Hold,
    st.sampled_from(["main", "t1", "t27", "A", "Z"]),
    st.sampled_from(POINTS),
    st.sampled_from(EDGES),
    st.integers(1, 999_999),
)


def order(*texts):
    return Order(Hold.parse(text) for text in texts)


@given(holds)
def test_a_hold_reads_back(hold) -> None:
    assert Hold.parse(str(hold)) == hold


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A:fx_trace", "not a hold"),
        ("A:fx_trace:enter#0", "not a hold"),
        ("a:fx_trace:enter", "no thread is called 'a'"),
        ("t0:fx_trace:enter", "no thread is called 't0'"),
        ("AB:fx_trace:enter", "no thread is called 'AB'"),
        ("A:fx:enter", "there is no point 'fx'"),
        ("A:fx_trace:instant", "enter or exit"),
    ],
)
def test_what_is_no_hold_is_refused_in_one_line(text, said) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Hold.parse(text)
    assert "\n" not in str(caught.value)


def test_a_letter_is_whoever_comes_first_but_not_the_main_thread() -> None:
    machine = order("A:wrapper:enter", "B:wrapper:enter")
    assert machine.arrive(1, "main", "wrapper", "enter") is None
    assert machine.arrive(7, "t1", "wrapper", "enter") == 0
    assert machine.arrive(7, "t1", "wrapper", "enter") is None
    assert machine.arrive(8, "", "wrapper", "enter") == 1
    assert machine.bound == {"A": 7, "B": 8}


def test_a_thread_named_by_number_is_no_letter() -> None:
    machine = order("A:wrapper:enter", "t1:wrapper:enter")
    assert machine.arrive(7, "t1", "wrapper", "enter") == 1
    assert machine.arrive(8, "t2", "wrapper", "enter") == 0


def test_arrivals_are_counted_from_the_threads_own_hold_before() -> None:
    machine = order("t1:step:enter#2", "t2:step:enter", "t1:step:enter#3")
    assert [machine.arrive(7, "t1", "step", "enter") for _ in range(5)] == [
        None,
        0,
        None,
        None,
        2,
    ]


def test_a_letters_count_is_each_threads_own() -> None:
    machine = order("A:step:enter#2", "B:wrapper:enter")
    assert machine.arrive(7, "t1", "step", "enter") is None
    assert machine.arrive(8, "t2", "step", "enter") is None
    assert machine.arrive(8, "t2", "step", "enter") == 0


def test_holds_are_passed_in_their_order() -> None:
    machine = order("A:step:enter", "B:wrapper:enter")
    assert machine.may_pass(0)
    assert not machine.may_pass(1)
    with pytest.raises(ValueError, match="not the next"):
        machine.pass_(1)
    machine.pass_(0)
    machine.pass_(1)
    assert machine.done


def test_it_is_impossible_when_the_next_thread_waits_for_a_lock_of_one_that_is_held() -> None:
    machine = order("t1:dynamo_compile:enter", "t2:fx_trace:enter")
    machine.arrive(7, "t1", "wrapper", "enter")
    machine.arrive(8, "t2", "fx_trace", "enter")
    assert machine.is_impossible({8}, {7: 8})
    assert not machine.is_impossible({8}, {7: 9})
    assert not machine.is_impossible({8}, {})
    assert machine.is_impossible(set(), {7: 9, 9: 7})


def test_it_is_not_known_to_be_impossible_while_anybody_may_play_the_part() -> None:
    machine = order("A:dynamo_compile:enter", "t2:fx_trace:enter")
    machine.arrive(8, "t2", "fx_trace", "enter")
    assert not machine.is_impossible({8}, {7: 8})


def test_a_thread_waits_before_the_lock_for_a_turn_behind_it() -> None:
    machine = order("t1:dynamo_compile:enter", "t2:dynamo_compile:enter", "t1:wrapper:exit")
    assert machine.arrive(8, "t2", "lock_wait", "enter") is None
    assert machine.ahead_of_lock(8, "lock_wait", "enter") == 1
    assert machine.arrive(7, "t1", "lock_wait", "enter") is None
    assert machine.ahead_of_lock(7, "lock_wait", "enter") is None  # it is its turn
    assert machine.ahead_of_lock(9, "lock_wait", "enter") is None  # it plays no part
    machine.arrive(7, "t1", "dynamo_compile", "enter")
    machine.pass_(0)
    assert machine.ahead_of_lock(7, "lock_wait", "enter") is None  # not behind the lock


def test_an_earlier_compile_than_the_one_meant_is_let_through() -> None:
    machine = order("t1:step:enter", "t2:dynamo_compile:enter#2")
    machine.arrive(8, "t2", "lock_wait", "enter")
    assert machine.ahead_of_lock(8, "lock_wait", "enter") is None
    machine.arrive(8, "t2", "dynamo_compile", "enter")
    assert machine.ahead_of_lock(8, "lock_wait", "enter") == 1
