"""Two threads use dynamo and inductor for the first time, and so import them.

``race``: a finder of modules has the first wait within its import of dynamo until the second is
within its import of inductor; each then needs a module that the other is in the middle of.
``serial``: the second begins when the first has ended. ``imported``: the main thread imports both
beforehand.
"""

import importlib.abc
import importlib.machinery
import sys
import threading

import torch

MODE = sys.argv[1]
in_dynamo, in_inductor = threading.Event(), threading.Event()


def in_middle_of_dynamo():
    if threading.current_thread() is trains:
        in_dynamo.set()
        in_inductor.wait(60)


def in_middle_of_inductor():
    if threading.current_thread() is tunes:
        in_inductor.set()


GATES = {
    "torch._dynamo.convert_frame": in_middle_of_dynamo,
    "torch._inductor.utils": in_middle_of_inductor,
}


class Gate(importlib.abc.MetaPathFinder):
    """Calls a function before two modules run; in the finder itself nobody may wait."""

    def find_spec(self, name, path=None, target=None):
        if name not in GATES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            del spec.loader.exec_module
            GATES[name]()
            run(module)

        spec.loader.exec_module = exec_module
        return spec


def train():
    torch.compile(lambda x: x.sin(), backend="eager")(torch.randn(3))


def tune():
    if MODE == "race":
        in_dynamo.wait(60)
    from torch._inductor.utils import IndentedBuffer

    IndentedBuffer()


trains = threading.Thread(target=train, name="trains")
tunes = threading.Thread(target=tune, name="tunes")
if MODE == "race":
    sys.meta_path.insert(0, Gate())
elif MODE == "imported":
    import torch._dynamo
    import torch._inductor.compile_fx
trains.start()
if MODE == "serial":
    trains.join()
tunes.start()
for thread in (trains, tunes):
    thread.join()
