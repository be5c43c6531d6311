"""What the watch adds to one cached call of compiled code: prints one JSON object.

Run under the watch (``test_hot_path.py`` does). Rounds with the probes and without them alternate
in one process, because two processes differ by more than the probes cost: the FX question is put
back into the closure of ``compile_wrapper``, and dynamo's guard hook is taken away and given back.
"""

import gc
import json
import statistics
import time

import torch
from torch._C._dynamo.eval_frame import set_guard_complete_hook

CALLS, ROUNDS = 500, 300


def question(wrapper):
    """The closure cell through which ``compile_wrapper`` asks whether FX traces."""
    names = wrapper.__code__.co_freevars
    return wrapper.__closure__[names.index("is_fx_symbolic_tracing")]


def timed(function, value):
    start = time.thread_time_ns()
    for _ in range(CALLS):
        function(value)
    return (time.thread_time_ns() - start) / CALLS


def main():
    function = torch.compile(lambda x: x, backend="eager")
    value = torch.zeros(1)
    for _ in range(CALLS):  # past the first calls, which are looked at
        function(value)
    cell = question(function)
    watched, bare = cell.cell_contents, cell.cell_contents.__wrapped__
    hook = set_guard_complete_hook(None)
    assert hook is not None, "the guard probe is not live"
    rounds = {"bare": [], "wrapper": [], "guards": [], "watched": []}
    gc.disable()
    for number in range(ROUNDS):
        order = list(rounds)
        # Rotated, so that no kind always follows the same other one.
        for kind in order[number % 4 :] + order[: number % 4]:
            cell.cell_contents = watched if kind in ("wrapper", "watched") else bare
            set_guard_complete_hook(hook if kind in ("guards", "watched") else None)
            rounds[kind].append(timed(function, value))
    cell.cell_contents = watched
    set_guard_complete_hook(hook)
    # A round can only be slowed down by what else the machine does, so the fastest is the truest.
    best = {kind: min(times) for kind, times in rounds.items()}
    pairs = [w - b for w, b in zip(rounds["watched"], rounds["bare"], strict=True)]
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "bare_ns": round(best["bare"], 1),
                "added_ns": round(best["watched"] - best["bare"], 1),
                "added_by_wrapper_ns": round(best["wrapper"] - best["bare"], 1),
                "added_by_guards_ns": round(best["guards"] - best["bare"], 1),
                "added_paired_median_ns": round(statistics.median(pairs), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
