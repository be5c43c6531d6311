"""Locks that a thread holds, read off the ``with`` statements that it is in."""

import pytest

from harness.supervise.held import held_in

PROGRAM = """
def outer():
    with weights, open(path) as file:
        first()
        with optimizer:
            second()
            def inner():
                with third_lock:
                    third()
            inner()
        after()
    outside()
with weights:
    top()
    made = lambda: lambda_call()
class Trainer:
    def step(self):
        with self.lock:
            try:
                tried()
            except ValueError:
                with locks[0]:
                    caught()
            match self.kind:
                case 1:
                    with torch.no_grad(), self.other:
                        matched()
        with weights: one_line()
        with (
            weights,
            optimizer,
        ):
            several()
"""
HELD = {
    ("first", "outer"): ("weights",),
    ("second", "outer"): ("weights", "optimizer"),
    ("third", "inner"): ("third_lock",),
    ("third", "outer.<locals>.inner"): ("third_lock",),
    ("inner", "outer"): ("weights", "optimizer"),
    ("after", "outer"): ("weights",),
    ("outside", "outer"): (),
    ("top", "<module>"): ("weights",),
    ("lambda_call", "<lambda>"): (),
    ("tried", "Trainer.step"): ("self.lock",),
    ("caught", "step"): ("self.lock", "locks[0]"),
    ("matched", "step"): ("self.lock", "self.other"),
    # Such a line may still be waiting for the lock.
    ("one_line", "step"): (),
    ("several", "step"): ("weights", "optimizer"),
    ("first", "another"): (),
}


@pytest.mark.parametrize(("call", "function"), HELD)
def test_what_is_held_in_a_line(call, function, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    line = next(
        n
        for n, text in enumerate(PROGRAM.splitlines(), 1)
        if f"{call}(" in text and "def " not in text
    )
    assert held_in(str(file), line, function) == HELD[call, function]


@pytest.mark.parametrize("text", ["def f(:", "\0", "x = " + "(" * 5000, None])
def test_what_cannot_be_parsed_tells_nothing(text, tmp_path):
    file = tmp_path / "program.py"
    if text is not None:
        file.write_text(text)
    assert held_in(str(file), 1, "f") == ()


def test_two_threads_in_a_ring_are_seen_with_what_they_hold(supervised_from_up):
    ended = supervised_from_up(
        """
        import threading
        weights, optimizer = threading.Lock(), threading.Lock()
        both = threading.Barrier(2)
        def saver():
            with weights:
                both.wait()
                with optimizer:
                    pass
        def trainer():
            with optimizer:
                both.wait()
                with weights:
                    pass
        for function in (saver, trainer):
            threading.Thread(target=function, name=function.__name__).start()
        print("up", flush=True)
        """,
        at_rest=True,
        timeout_s=1.0,
    )
    found = {wait.thread: (wait.what, wait.holds) for wait in ended.waits}
    assert found["saver"] == ("`optimizer`", ("weights",))
    assert found["trainer"] == ("`weights`", ("optimizer",))
