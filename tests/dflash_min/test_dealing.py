"""Who makes which batch and who takes it: in one order on both sides, without a lock-up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from dflash_min.channel import Channel
from dflash_min.config import TrainConfig
from dflash_min.dealing import made_by, maker, taken_by
from dflash_min.resolve import resolve

BASE = resolve(TrainConfig(), gpus=0)

counts = st.integers(1, 5)


@st.composite
def runs(draw):
    """A run and the step that it begins with."""
    targets, drafters, steps = draw(counts), draw(counts), draw(counts)
    resolved = replace(
        BASE,
        layout=replace(BASE.layout, targets=("cpu",) * targets, drafters=tuple(["cpu"] * drafters)),
        accumulate=draw(counts),
        queue_depth=draw(st.integers(1, 3)),
        steps=steps,
    )
    return resolved, draw(st.integers(0, steps))


def taken_after(resolved, rank, start):
    return [
        number for step in range(start, resolved.steps) for number in taken_by(resolved, rank, step)
    ]


@given(runs())
def test_every_batch_is_made_once_and_taken_once_in_the_same_order(run):
    resolved, start = run
    first, end = (resolved.batch_number(step, 0, 0) for step in (start, resolved.steps))
    made = [made_by(resolved, i, start) for i in range(len(resolved.layout.targets))]
    taken = [taken_after(resolved, rank, start) for rank in range(len(resolved.layout.drafters))]
    assert sorted(chain(*made)) == sorted(chain(*taken)) == list(range(first, end))
    for i, of_target in enumerate(made):
        for rank, of_drafter in enumerate(taken):
            put = [number for number in of_target if resolved.batch_place(number)[1] == rank]
            assert put == [number for number in of_drafter if maker(resolved, number) == i]


@dataclass
class Threads:
    """The pipeline's threads as what they do: put, get, release, and meet after each step."""

    resolved: object
    start: int
    channels: dict = field(init=False)
    working: set = field(default_factory=set)
    """Drafters that have not released what they took last."""

    def __post_init__(self):
        ranks, targets = (range(len(x)) for x in (self.drafters, self.targets))
        depth = self.resolved.queue_depth
        self.channels = {(rank, i): Channel(depth) for rank in ranks for i in targets}
        self.to_make = [deque(made_by(self.resolved, i, self.start)) for i in targets]
        self.to_take = [deque(taken_after(self.resolved, rank, self.start)) for rank in ranks]

    targets = property(lambda self: self.resolved.layout.targets)
    drafters = property(lambda self: self.resolved.layout.drafters)

    def moves(self):
        """All that some thread could do now without waiting."""
        can = []
        for i, left in enumerate(self.to_make):
            if left and self.into(i, left[0])._has_room():
                can.append((self.make, i))
        behind = min(self.step(rank) for rank in range(len(self.to_take)))
        for rank, left in enumerate(self.to_take):
            channel = left and self.channels[rank, maker(self.resolved, left[0])]
            if rank in self.working:
                can.append((self.release, rank))
            elif left and channel._items and self.step(rank) == behind:
                # All others have ended the step before.
                can.append((self.take, rank))
        return can

    def step(self, rank):
        left = self.to_take[rank]
        return self.resolved.batch_place(left[0])[0] if left else self.resolved.steps

    def into(self, i, number):
        return self.channels[self.resolved.batch_place(number)[1], i]

    def make(self, i):
        number = self.to_make[i].popleft()
        self.into(i, number).put(number)

    def take(self, rank):
        number = self.to_take[rank].popleft()
        assert self.channels[rank, maker(self.resolved, number)].get() == number
        self.working.add(rank)

    def release(self, rank):
        self.working.remove(rank)
        for i in range(len(self.targets)):
            self.channels[rank, i].release()


@given(runs(), st.randoms(use_true_random=False))
def test_nobody_waits_for_ever_whoever_is_faster(run, random):
    threads = Threads(*run)
    while moves := threads.moves():
        move, index = random.choice(moves)
        move(index)
    assert not any(threads.to_make)
    assert not any(threads.to_take)
