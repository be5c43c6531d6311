"""Thread starts, ends and errors; the main program's error, whatever hook it sets."""

import time

import pytest

from harness.events.schema import End, ThreadEnd, ThreadError, ThreadStart


def test_a_start_says_who_and_where_and_which_thread(run) -> None:
    program = """
        import threading
        def launch(name):
            thread = threading.Thread(target=seen, name=name, daemon=True)
            thread.start()
            thread.join()
        def seen(): print(threading.get_native_id())
        launch("worker")
    """
    child = run(program)
    (started,) = child.of(ThreadStart)
    assert started.thread == "MainThread"
    assert started.data.child_tid == int(child.out)
    assert (started.data.name, started.data.daemon) == ("worker", True)
    assert [frame.function for frame in started.where] == ["launch", "<module>"]
    (ended,) = child.of(ThreadEnd)
    assert (ended.tid, ended.thread) == (started.data.child_tid, "worker")


def test_subclasses_timers_and_executors_are_seen(run) -> None:
    program = """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        class Own(threading.Thread):
            def start(self): super().start()
            def run(self): pass
        Own(name="own").start()
        threading.Timer(0.01, int).start()
        def submit():
            with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool: pool.submit(int).result()
        submit()
    """
    child = run(program)
    starts = {event.data.name: event for event in child.of(ThreadStart)}
    assert {"own", "pool_0"} <= starts.keys()
    assert len(starts) == 3
    assert "submit" in [frame.function for frame in starts["pool_0"].where if frame.user]
    assert len(child.of(ThreadEnd)) == 3


def test_a_start_that_fails_fails_as_before(run) -> None:
    program = """
        import threading
        thread = threading.Thread(target=int); thread.start(); thread.join()
        try: thread.start()
        except RuntimeError as error: print(error)
    """
    child = run(program)
    assert child.out == "threads can only be started once\n"
    assert len(child.of(ThreadStart)) == 1


SETS_HOOK = {
    "default": "",
    "own": "threading.excepthook = lambda args: print('theirs', args.exc_type.__name__)",
}


@pytest.mark.parametrize("hook", SETS_HOOK)
def test_a_threads_error_is_recorded_and_the_programs_hook_still_called(run, hook) -> None:
    program = f"""
        import threading
        {SETS_HOOK[hook]}
        def fails(): raise ValueError("gone")
        thread = threading.Thread(target=fails, name="w"); thread.start(); thread.join()
    """
    child = run(program)
    (error,) = child.of(ThreadError)
    assert (error.thread, error.data.via) == ("w", "thread")
    (link,) = error.data.chain
    assert (link.type, link.message, link.relation) == ("ValueError", "gone", "self")
    assert link.frames[-1].function == "fails"
    if hook == "own":
        assert child.out == "theirs ValueError\n"
        assert child.err == ""
    else:
        assert "Exception in thread w" in child.err
        assert "ValueError: gone" in child.err


def test_a_hook_set_while_the_thread_runs_is_the_one_called(run) -> None:
    program = """
        import threading
        go = threading.Event()
        def fails(): go.wait(); raise ValueError
        thread = threading.Thread(target=fails); thread.start()
        threading.excepthook = lambda args: print("late")
        go.set(); thread.join()
        print(threading.excepthook is threading.__excepthook__)
    """
    child = run(program)
    assert child.out == "late\nFalse\n"
    assert len(child.of(ThreadError)) == 1


def test_system_exit_in_a_thread_is_no_error(run) -> None:
    program = """
        import sys, threading
        thread = threading.Thread(target=sys.exit, args=(1,)); thread.start(); thread.join()
    """
    child = run(program)
    assert child.of(ThreadError) == []
    assert len(child.of(ThreadEnd)) == 1


MAIN_HOOKS = {
    "none": "",
    "set by the program": "sys.excepthook = lambda *args: print('theirs')",
    "exits at once": "sys.excepthook = lambda *args: (print('theirs', flush=True), os._exit(1))",
    "chained": "old = sys.excepthook; sys.excepthook = lambda *a: (print('theirs'), old(*a))",
}


@pytest.mark.parametrize("hook", MAIN_HOOKS)
def test_mains_error_is_recorded_once_whatever_hook_is_set(run, hook) -> None:
    program = f"""
        import os, sys
        {MAIN_HOOKS[hook]}
        def fails(): raise KeyError("custom")
        fails()
    """
    child = run(program)
    assert child.code == 1
    (error,) = child.of(ThreadError)
    assert (error.data.via, error.thread) == ("main", "MainThread")
    assert error.data.chain[0].type == "KeyError"
    assert [frame.function for frame in error.data.chain[0].frames] == ["<module>", "fails"]
    assert child.out == ("" if hook == "none" else "theirs\n")
    assert ("KeyError: 'custom'" in child.err) == (hook in {"none", "chained"})
    assert isinstance(child.events()[-1], End)


def test_mains_error_is_recorded_before_the_interpreter_waits_for_threads(start, run_folder):
    program = """
        import threading
        threading.Thread(target=threading.Event().wait).start()
        raise KeyError("main is gone, the thread is not")
    """
    process = start(program)
    log = run_folder / "events.jsonl"
    while not log.exists() or b"main is gone" not in log.read_bytes():
        assert process.poll() is None
        time.sleep(0.02)
    assert b'"via": "main"' in log.read_bytes()


@pytest.mark.parametrize("code", ["sys.exit(3)", "sys.exit('words')", "signal.raise_signal(2)"])
def test_exits_and_ctrl_c_are_no_errors(run, code) -> None:
    child = run(f"import signal, sys\n{code}")
    assert child.code != 0
    assert child.of(ThreadError) == []


def test_an_error_that_a_test_runner_caught_is_not_mains(run) -> None:
    program = """
        import sys
        def runner():
            try: raise ValueError
            except ValueError as error: sys.last_value = sys.last_exc = error
        runner()
        sys.exit(1)
    """
    # pytest sets these for the debugger: the traceback then begins in the runner, not in main.
    child = run(program)
    assert child.of(ThreadError) == []


def test_chains_and_groups_keep_each_error_with_one_number(run) -> None:
    program = """
        import threading
        shared = ValueError("shared")
        def caused():
            try: raise OSError("first")
            except OSError as first: raise RuntimeError("second") from first
        def context():
            try: raise OSError("before")
            except OSError: raise LookupError("after")
        def hidden():
            try: raise OSError("unseen")
            except OSError: raise LookupError("alone") from None
        def group():
            try: caused()
            except RuntimeError as error: raise ExceptionGroup("two", [error, shared])
        def again(): raise shared
        for target in (caused, context, hidden, group, again):
            thread = threading.Thread(target=target, name=target.__name__)
            thread.start(); thread.join()
    """
    child = run(program)
    chains = {event.thread: event.data.chain for event in child.of(ThreadError)}
    words = {
        name: [(link.relation, link.message.split(" (")[0]) for link in chain]
        for name, chain in chains.items()
    }
    assert words["caused"] == [("self", "second"), ("cause", "first")]
    assert words["context"] == [("self", "after"), ("context", "before")]
    assert words["hidden"] == [("self", "alone")]
    assert words["group"] == [
        ("self", "two"),
        ("member", "second"),
        ("member", "shared"),
        ("cause", "first"),
    ]
    assert chains["group"][1].frames[-1].function == "caused"
    assert chains["group"][2].id == chains["again"][0].id
    ids = [link.id for name in ("caused", "context", "hidden", "group") for link in chains[name]]
    assert len(set(ids)) == len(ids)


def test_odd_exceptions_are_recorded_all_the_same(run) -> None:
    program = """
        import threading
        class Unprintable(Exception):
            def __str__(self): raise TypeError("no")
        class Closed(Exception):
            def __getattribute__(self, name):
                if name == "__dict__": raise AttributeError(name)
                return super().__getattribute__(name)
        def loop():
            error = ValueError("a" * 100_000); other = OSError("o")
            error.__cause__ = other; other.__cause__ = error
            raise error
        def unprintable(): raise Unprintable
        def closed(): raise Closed("shut")
        for target in (loop, unprintable, closed):
            thread = threading.Thread(target=target, name=target.__name__)
            thread.start(); thread.join()
    """
    child = run(program)
    chains = {event.thread: event.data.chain for event in child.of(ThreadError)}
    assert [link.relation for link in chains["loop"]] == ["self", "cause"]
    assert 1000 < len(chains["loop"][0].message) < 10_000
    assert "TypeError" in chains["unprintable"][0].message
    assert chains["unprintable"][0].type == "__main__.Unprintable"
    assert chains["closed"][0].message == "shut"


def test_a_recorded_error_keeps_no_object_alive(run) -> None:
    program = """
        import gc, threading, weakref
        class Tensor: pass
        alive = []
        def fails():
            tensor = Tensor(); alive.append(weakref.ref(tensor))
            raise ValueError
        threading.excepthook = lambda args: None
        thread = threading.Thread(target=fails); thread.start(); thread.join()
        del thread; gc.collect()
        print(alive[0]())
    """
    assert run(program).out == "None\n"
