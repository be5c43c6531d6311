"""What the watch adds to one cached call of compiled code: prints one JSON object.

Run under the watch (``test_hot_path.py`` does). Rounds with the probes and without them alternate
in one process, because two processes differ by more than the probes cost: the FX question is put
back into the closure of ``compile_wrapper``, and dynamo's guard hook, where it is in its place, is
taken away and given back. Rounds ``no holds`` are watched ones in which no point can be held: what
holds cost where no schedule asks for any is what those save. ``points_reached``: how often a call
of the watched rounds came to where a schedule could hold it.
Measured twice: in the main thread alone, and in a thread that has just compiled while the main
thread, which called before, waits for it.
"""

import gc
import json
import statistics
import threading
import time

import usage

usage.under_the_watch(__doc__, "pytest -s tests/bench/test_hot_path.py")

import torch
from _compile_race_child import following
from _compile_race_child import torch_symbols as symbols
from _compile_race_child.recorder import Recorder
from torch._C._dynamo.eval_frame import set_guard_complete_hook

# All in less than the ten seconds for which a parked thread is waited for.
CALLS, ROUNDS = 50, 150


def plain_function():
    """A function with a code object of its own, so that no other one's entry fits it.

    It computes something: dynamo keeps no entry for a function that does not, and evaluates no
    guards when that is called.
    """
    names = {}
    exec("def plain(x): return x + 1", names)
    return names["plain"]


def nothing_to_run(graph, inputs):
    """A backend whose code is free, so that a call is dynamo's part of it and little else."""
    return lambda x: (x,)


def evaluates_guards(function, value):
    """Whether dynamo asks its guard hook about a call."""
    asked = []
    set_guard_complete_hook(lambda hit: (asked.append(hit), hit)[1])
    function(value)
    set_guard_complete_hook(None)
    return asked == [True]


def question(wrapper):
    """The closure cell through which ``compile_wrapper`` asks whether FX traces."""
    names = wrapper.__code__.co_freevars
    return wrapper.__closure__[names.index("is_fx_symbolic_tracing")]


def points_reached(function, value):
    """How often so many calls come to where a thread can be held."""
    reached = []
    original = Recorder.reach
    Recorder.reach = lambda self, point, edge: reached.append(point)
    for _ in range(CALLS):
        function(value)
    Recorder.reach = original
    return len(reached)


def timed(function, value):
    start = time.thread_time_ns()
    for _ in range(CALLS):
        function(value)
    return (time.thread_time_ns() - start) / CALLS


def measured(plain):
    function = torch.compile(plain, backend=nothing_to_run)
    value = torch.zeros(1)
    for _ in range(600):  # past the first calls, which are looked at
        function(value)
    cell = question(function)
    watched, bare = cell.cell_contents, cell.cell_contents.__wrapped__
    assert watched is not bare, "the wrapper probe is not live"
    resting = symbols._calm
    assert any(follower._tap for follower in following._followers.values()), "no guards probe"
    # Out of its place as a rule: then the watch adds nothing to the evaluation of guards.
    hook = set_guard_complete_hook(None)
    assert evaluates_guards(function, value), "no guarded frame is measured"
    reached = points_reached(function, value)
    rounds = {"bare": [], "wrapper": [], "guards": [], "no holds": [], "watched": []}
    holds = Recorder.reach, lambda self, point, edge: None
    gc.disable()
    for number in range(ROUNDS):
        order = list(rounds)
        # Rotated, so that no kind always follows the same other one.
        first = number % len(order)
        for kind in order[first:] + order[:first]:
            Recorder.reach = holds[kind == "no holds"]
            cell.cell_contents = bare if kind in ("bare", "guards") else watched
            set_guard_complete_hook(None if kind in ("bare", "wrapper") else hook)
            rounds[kind].append(timed(function, value))
    cell.cell_contents = watched
    Recorder.reach = holds[0]
    set_guard_complete_hook(hook)
    # A round can only be slowed down by what else the machine does, so the fastest is the truest.
    best = {kind: min(times) for kind, times in rounds.items()}
    pairs, with_holds = (
        [w - b for w, b in zip(rounds["watched"], rounds[other], strict=True)]
        for other in ("bare", "no holds")
    )
    assert symbols._calm is resting, "what was measured changed meanwhile"
    return {
        "every_thread_was_looked_at": resting,
        "bare_ns": round(best["bare"], 1),
        "added_ns": round(best["watched"] - best["bare"], 1),
        "added_by_wrapper_ns": round(best["wrapper"] - best["bare"], 1),
        "added_by_guards_ns": round(best["guards"] - best["bare"], 1),
        "added_paired_median_ns": round(statistics.median(pairs), 1),
        "points_reached": reached,
        "added_by_holds_ns": round(best["watched"] - best["no holds"], 1),
        "added_by_holds_paired_median_ns": round(statistics.median(with_holds), 1),
    }


def main():
    found = {"torch": torch.__version__, "alone": measured(plain_function())}

    def compile_and_measure():
        found["beside_a_parked_thread"] = measured(plain_function())

    thread = threading.Thread(target=compile_and_measure)
    thread.start()
    thread.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
