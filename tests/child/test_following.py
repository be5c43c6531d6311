"""Following calls: what is told, and what is rather left untold, without torch."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.child import following
from harness.child.recorder import Recorder

CODE = {"id": 1, "name": "step", "file": "x.py", "line": 1, "internal": False}
OTHER = {**CODE, "id": 2, "name": "other"}


class Told(Recorder):
    """A recorder that keeps its events."""

    def __init__(self, folder):
        super().__init__(str(folder))
        self.events = []

    def emit(self, point, data=None, **_):
        self.events.append((point, data["route"], data["code"]["name"]))
        return 1


class Tap:
    """Stands for the guard hook."""

    is_open = False

    def __init__(self):
        self.keeps_misses = False
        self.while_shutting = lambda: None

    def open(self):
        self.is_open = True

    def shut(self):
        # Hits are answered without us from here on, and the tap is still said to be open.
        self.while_shutting()
        self.is_open = False

    def keep_misses(self):
        self.keeps_misses = True


@pytest.fixture
def tap():
    return Tap()


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


@pytest.fixture
def follower(told, tap, monkeypatch):
    monkeypatch.setattr(following.symbols, "stance", lambda: ("", None))
    monkeypatch.setattr(following.symbols, "dispatch_modes", list)
    follower = following.of(told)
    follower.attach(tap)
    return follower


def elsewhere(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_the_tap_is_open_only_while_a_call_is_pending(follower, tap, told):
    follower.entered(CODE, None)
    assert tap.is_open
    follower.hit()
    assert not tap.is_open
    follower.settle()
    assert told.events == []


def test_what_neither_hit_nor_compiled_ran_eager(follower, tap, told):
    follower.entered(CODE, None)
    follower.entered(OTHER, None)
    assert told.events == [("eager", "unknown", "step")]
    follower.settle()
    assert told.events[1:] == [("eager", "unknown", "other")]
    assert not tap.is_open


def test_a_hit_of_another_thread_settles_nothing_here(follower, tap, told):
    follower.entered(CODE, None)
    elsewhere(follower.hit)
    assert tap.is_open
    follower.settle()
    assert told.events == [("eager", "unknown", "step")]


def test_the_tap_stays_open_while_another_thread_has_a_call_pending(follower, tap):
    follower.entered(CODE, None)
    elsewhere(follower.entered, OTHER, None)
    follower.hit()
    assert tap.is_open


def test_a_call_during_which_the_tap_was_shut_is_not_told_of(follower, tap, told):
    follower.entered(CODE, None)
    follower._shut(tap)  # as another thread does whose check came before this call
    assert tap.is_open, "a pending call opens it again"
    follower.settle()
    assert told.events == []


def test_nor_is_one_that_began_and_ended_while_another_thread_shut_the_tap(follower, tap, told):
    """Its hit came when hits were told no more, and the tap was not yet said to be shut."""

    def call_hit_unseen_and_call_again():
        tap.while_shutting = lambda: None
        elsewhere(lambda: (follower.entered(CODE, None), follower.settle()))

    follower.entered(OTHER, None)
    tap.while_shutting = call_hit_unseen_and_call_again
    follower.hit()
    assert told.events == []
    follower.entered(CODE, None)  # and what comes later is told of again
    follower.settle()
    assert told.events == [("eager", "unknown", "step")]


def test_nor_is_one_whose_hit_came_before_the_mark_was_changed(follower, tap, told):
    began, shut, settled = (threading.Event() for _ in range(3))

    def call_and_be_shut_out():
        follower.entered(CODE, None)
        began.set()
        assert shut.wait(60)
        follower.settle()
        settled.set()

    thread = threading.Thread(target=call_and_be_shut_out)
    thread.start()
    assert began.wait(60)

    def let_the_other_settle():
        tap.while_shutting = lambda: None
        shut.set()
        assert settled.wait(60)

    tap.while_shutting = let_the_other_settle
    follower._shut(tap)
    thread.join()
    assert told.events == []
    assert not tap.is_open


def test_threads_that_ask_for_the_follower_at_once_get_one(told, monkeypatch):
    """Both find none and make one each, before either has kept its own."""
    both_made, watched = threading.Barrier(2), []
    make = following.Follower.__init__

    def make_and_wait(self, recorder):
        make(self, recorder)
        both_made.wait(60)

    monkeypatch.setattr(following.Follower, "__init__", make_and_wait)

    def watch_forks(self):
        watched.append(self)

    monkeypatch.setattr(following.Follower, "watch_forks", watch_forks)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(following.of, [told, told])
    assert first is second is following.of(told)
    assert watched == [first]


def test_a_call_of_a_thread_that_ended_is_not_taken_for_the_next_ones_with_its_id(
    follower, tap, told
):
    """Threads of C++ end unheard, and the system gives their ids again."""
    ids = []

    def under_an_id(call):
        ids.append(told.local.tid)
        told.local.tid = ids[0]
        call()

    elsewhere(under_an_id, lambda: (follower.entered(CODE, None), follower.missed(CODE)))
    elsewhere(under_an_id, lambda: follower.entered(OTHER, None))
    elsewhere(under_an_id, follower.settle)
    assert told.events == []
    assert (follower._pending, follower._missed, tap.is_open) == ({}, {}, False)


def test_nor_is_one_while_the_tap_is_shut(follower, tap, told):
    follower.entered(CODE, None)
    tap.shut()  # the other thread has not come to look again yet
    follower.settle()
    assert told.events == []


def test_a_parked_threads_call_does_not_slow_the_others_for_ever(follower, tap, told, monkeypatch):
    elsewhere(follower.entered, CODE, None)
    follower.hit()
    assert tap.is_open
    monkeypatch.setattr(following, "_PATIENCE_S", 0.0)
    follower.hit()
    assert not tap.is_open
    follower.settle()
    assert told.events == []


def test_a_miss_without_a_compile_ran_eager_and_one_with_it_did_not(follower, told):
    follower.entered(CODE, None)
    follower.missed(CODE)
    assert follower.compiling(CODE)
    follower.compiled(CODE, 1, None)
    follower.settle()
    assert told.events == []
    follower.missed(CODE)
    follower.missed(CODE)
    assert told.events == [("eager", "unknown", "step")]


def test_after_the_limit_misses_run_the_entries_only(follower, told):
    follower.compiled(CODE, 1, following.Switch("recompile_limit"))
    follower.missed(CODE)
    follower.settle()
    assert [route for _, route, _ in told.events] == ["recompile_limit", "run_only"]
    follower.compiled(CODE, 1, None)  # after a reset
    follower.missed(CODE)
    follower.settle()
    assert told.events[2:] == [("eager", "unknown", "step")]


def test_a_miss_of_another_function_says_that_part_of_the_call_ran_compiled(follower, told):
    follower.entered(CODE, None)
    follower.missed(OTHER)
    follower.compiling(OTHER)
    follower.settle()
    assert told.events == []


@pytest.mark.parametrize("stance", ["fail_on_recompile", "skip_guard_eval_unsafe"])
def test_under_some_stances_a_miss_raises(follower, told, monkeypatch, stance):
    monkeypatch.setattr(following.symbols, "stance", lambda: (stance, object()))
    follower.entered(CODE, None)
    follower.missed(CODE)
    follower.settle()
    assert told.events == []


def test_a_stance_is_that_threads_who_set_it_whoever_sets_the_next_one(follower, monkeypatch):
    ours, theirs, nobodys = object(), object(), object()
    in_force = []
    monkeypatch.setattr(following.symbols, "stance", lambda: ("force_eager", in_force[-1]))
    follower.setting_stance(ours)
    in_force.append(ours)
    elsewhere(follower.setting_stance, theirs)  # announced, and not in force yet
    assert follower.stance().by_tid == threading.get_native_id()
    in_force.append(theirs)
    assert follower.stance().by_tid not in {None, threading.get_native_id()}
    in_force.append(nobodys)
    assert follower.stance().by_tid is None


def test_torchs_own_functions_are_not_followed(follower, tap):
    follower.entered({**CODE, "internal": True}, None)
    assert not tap.is_open


def test_without_the_guard_hook_nothing_is_followed(told):
    follower = following.of(told)
    follower.entered(CODE, None)
    follower.settle()
    assert told.events == []
