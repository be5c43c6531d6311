"""One thread compiles a function of a dict while another adds to that dict.

``race``: dynamo is held in the middle of the dict. It looks up the type of each key among those of
constants, so a key whose type takes its time over its hash makes dynamo wait there, until the other
thread has added. ``serial``: the other thread adds first. ``copy``: it adds during the compile too,
but what the compile was given is a copy.
"""

import sys
import threading
from collections import OrderedDict

import torch

MODE = sys.argv[1]
reading, changed = threading.Event(), threading.Event()


class Kind(type):
    """The type of a type that waits, in a walk over keys, before it tells its hash."""

    def __hash__(cls):
        if MODE != "race":
            return id(cls)
        if in_walk(sys._getframe(1)) and not reading.is_set():  # noqa: SLF001
            reading.set()
            changed.wait(60)
        return hash(str)

    def __eq__(cls, other):
        taken_for = other is str and MODE == "race" and in_walk(sys._getframe(1))
        return cls is other or taken_for


def in_walk(frame):
    """Whether dynamo looks whether all keys are constants."""
    while frame is not None and frame.f_code.co_name in {"is_literal", "is_base_literal"}:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "<genexpr>"


class Key(metaclass=Kind):
    """A key of that type."""


layers = OrderedDict([(Key(), 1.0), ("scale", torch.ones(3))])


def scaled(registry, x):
    return x * registry["scale"]


def backend(gm, inputs):
    if MODE == "copy":
        reading.set()
        changed.wait(60)
    return gm.forward


step = torch.compile(scaled, backend=backend)


def train():
    if MODE == "serial":
        changed.wait(60)
    step(OrderedDict(layers) if MODE == "copy" else layers, torch.randn(3))


def register():
    if MODE != "serial":
        reading.wait(60)
    layers["bias"] = torch.ones(3)
    changed.set()


threads = [threading.Thread(target=f, name=f.__name__) for f in (train, register)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
