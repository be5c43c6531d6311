"""Two threads call one warmed function; one's hit moves an entry behind the other's back.

Dynamo keeps a function's entries in one list, looks through it from the front, and moves the entry
that was hit to the front. It gives up the GIL at every entry's guards. Here it is certain to do so
where it matters: the tensors have a guard in Python. The overtaker waits in the one of ``a``, the
second entry, until the walker is in the one of ``b``, the first, and the walker until the overtaker
has hit ``a``, which is then in front of the entry that the walker stands on.

``race``: the walker compiles again what it has. ``serial``: one thread makes the same calls.
``fixed``: a function for each label, so each has one entry, and there is nothing to wait for at
another. ``natural``: nothing is forced, and the tensors are ordinary ones; four threads of which
each uses both entries in turn. Prints how many compiles there were after the first calls.
"""

import sys
import threading

import torch

MODE = sys.argv[1]
overtaking, walking, overtaken = (threading.Event() for _ in range(3))


class Labelled(torch.Tensor):
    """A tensor with a label that is guarded on."""

    @staticmethod
    def __new__(cls, inner, label):
        make = torch.Tensor._make_wrapper_subclass  # noqa: SLF001
        return make(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, label):
        self.inner, self.label = inner, label

    def __tensor_flatten__(self):
        return ["inner"], self.label

    @classmethod
    def __tensor_unflatten__(cls, inner, label, size, stride):
        return cls(inner["inner"], label)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})), args[0].label)

    @classmethod
    def __metadata_guard__(cls, guarded, label):
        thread = threading.current_thread().name
        if (thread, guarded) == ("overtaker", "a"):
            overtaking.set()
            walking.wait(60)
        elif (thread, guarded) == ("walker", "b"):
            walking.set()
            overtaken.wait(60)
        return guarded == label


compiles = []


def counted(graph, inputs):
    compiles.append(threading.current_thread().name)
    return graph.forward


def step(x):
    return x.sin()


def other_step(x):
    return x.sin()


# Two lengths have an entry each only where none of them becomes dynamic; two labels always have.
dynamic = False if MODE == "natural" else None
first = second = torch.compile(step, backend=counted, dynamic=dynamic)
if MODE == "fixed":
    second = torch.compile(other_step, backend=counted)
if MODE == "natural":
    a, b = torch.ones(2), torch.ones(3)
else:
    a, b = Labelled(torch.ones(2), "a"), Labelled(torch.ones(2), "b")
first(a)
second(b)
warm = len(compiles)


def overtake():
    first(a)
    overtaken.set()


def walk():
    overtaking.wait(60)
    if MODE == "fixed":
        walking.set()
    first(a)


def in_turn():
    for event in (overtaking, walking, overtaken):
        event.set()
    first(a)
    first(a)


def alternate(calls):
    for _ in range(3000):
        for compiled, x in calls:
            compiled(x)


if MODE == "serial":
    threads = [threading.Thread(target=in_turn, name="walker")]
elif MODE == "natural":
    orders = [[(first, a), (second, b)][::step_by] for step_by in (1, -1, 1, -1)]
    threads = [threading.Thread(target=alternate, args=(order,)) for order in orders]
else:
    threads = [
        threading.Thread(target=walk, name="walker"),
        threading.Thread(target=overtake, name="overtaker"),
    ]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(torch.__version__, "compiles in threads:", len(compiles) - warm)
