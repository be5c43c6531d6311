"""Following calls: what is told, and what is rather left untold, without torch."""

import threading

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

    def open(self):
        self.is_open = True

    def shut(self):
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
