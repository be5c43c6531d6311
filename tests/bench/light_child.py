"""A program that records as a compiled one does, from several threads, without torch.

It runs under the watch and writes through the watch's own recorder until it is killed.
"""

import threading
import time

import usage

usage.under_the_watch(__doc__, "python tests/bench/endings.py")

from _compile_race_child import boot

THREADS = 3
CODE = {"id": 1, "name": "block", "file": __file__, "line": 1, "internal": False}
CONTEXT = {
    "grad_mode": True,
    "inference_mode": False,
    "autocast": {},
    "torch_function_modes": [],
    "num_threads": 2,
}
FRAMES = [[__file__, 30, "work", True]]


def work(number: int) -> None:
    recorder = boot._session._recorder
    first = {"code": CODE, "first": True, "context": CONTEXT}
    recorder.emit("wrapper", first, where=FRAMES)
    turn = 0
    while True:
        turn += 1
        compile_id = f"{number}/{turn}"
        began = {"code": CODE, "context": CONTEXT, "inputs": [], "limit": 8}
        recorder.emit("dynamo_compile", began, edge="enter", compile_id=compile_id, where=FRAMES)
        time.sleep(0.0005)
        ended = {"code": CODE, "ok": True, "reasons": []}
        recorder.emit("dynamo_compile", ended, edge="exit", compile_id=compile_id)
        recorder.emit("step", {"step": turn, "tokens": 8, "seconds": 0.001})
        if turn % 16 == 0:
            threading.Thread(target=int, name=f"short-{number}-{turn}").start()


def warm_up() -> None:
    recorder = boot._session._recorder
    data = {"code": CODE, "context": CONTEXT, "inputs": [], "limit": 8}
    recorder.emit("dynamo_compile", data, edge="enter", compile_id="0/0", where=FRAMES)
    data = {"code": CODE, "ok": True, "entry": {"compile_id": "0/0", "digest": "d"}}
    recorder.emit("dynamo_compile", data, edge="exit", compile_id="0/0")


warm_up()
for number in range(THREADS):
    threading.Thread(target=work, args=(number,), name=f"worker-{number}", daemon=True).start()
threading.Event().wait()
