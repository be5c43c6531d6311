"""The real controller on simulated threads: random plans of random programs.

1,000 plans in the suite; ``SIMULATED_PLANS=10000`` in the environment runs so many instead, and of
the other kinds in proportion.
"""

import os
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.child.schedule.order import Hold
from harness.schedule.plan import Plan, serial

from .simulated import SEGMENTS, Run, explore, keeps_lock_for_another, pick_holds, program_of

pytestmark = pytest.mark.timeout(900)  # 10,000 plans on a loaded machine

SHARE = int(os.environ.get("SIMULATED_PLANS", "1000")) / 10_000
PLANS = 10  # for each of Hypothesis's examples, which cost more than a simulated run

programs_of = st.lists(
    st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(program_of),
    min_size=2,
    max_size=3,
)


def many(plans):
    return settings(
        max_examples=max(int(plans * SHARE) // PLANS, 1),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def plans_of(programs, seed):
    """Plans, each with the generator that chooses who runs."""
    for number in range(PLANS):
        chance = random.Random(f"{seed} {number}")
        size = chance.randint(2, 6)
        picks = [(chance.randrange(len(programs)), chance.randrange(40)) for _ in range(size)]
        yield pick_holds(programs, picks), chance


@many(10_000)
@given(programs_of, st.integers(0, 2**32))
def test_a_plan_is_reached_if_it_can_be_and_nothing_ever_deadlocks(programs, seed) -> None:
    for holds, chance in plans_of(programs, seed):
        run = Run(programs, holds, chance.randrange)
        said = run.go()
        assert run.recorder.lost == 0
        assert all(run.machine.proofs)
        can, must = explore(programs, holds)
        done = said["state"] == "done"
        assert can or not done
        assert done or not must, said
        # Who has to keep the lock meanwhile may have taken it too early: nobody can foresee that.
        if not keeps_lock_for_another(programs, holds):
            assert done == can, said
        passes = [data["number"] for point, data in run.machine.emitted if point == "hold"]
        assert passes == list(range(said["reached"]))


@many(2_000)
@given(programs_of, st.integers(0, 2**32))
def test_a_control_is_met_with_each_thread_out_before_the_next_comes_in(programs, seed) -> None:
    for holds, chance in plans_of(programs, seed):
        if len({hold.thread for hold in holds}) < 2:
            continue
        control = serial(Plan(tuple(holds)))
        run = Run(programs, control.holds, chance.randrange, apart=True)
        said = run.go()
        assert run.recorder.lost == 0
        assert said["state"] == "done", said
        assert all(
            out_between(run.machine.moments, one, two)
            for one, two in pairwise(control.texts)
            if one.partition(":")[0] != two.partition(":")[0]
        )


def out_between(moments, one, two):
    """Whether the thread of hold ``one`` was out of everything before ``two`` was passed."""
    thread = int(one.partition(":")[0][1:]) - 1
    steps = moments[moments.index(one) + 1 : moments.index(two)]
    return any(insides[thread] == 0 for insides in steps)


@many(2_000)
@given(programs_of, st.integers(0, 2**32), st.permutations("ABC"))
def test_letters_never_deadlock_either_and_are_two_threads(programs, seed, letters) -> None:
    for numbered, chance in plans_of(programs, seed):
        holds = [
            Hold(letters[int(hold.thread[1:]) - 1], hold.point, hold.edge, hold.nth)
            for hold in numbered
        ]
        run = Run(programs, holds, chance.randrange)
        said = run.go()
        assert run.recorder.lost == 0
        assert all(run.machine.proofs)
        assert len(set(said["threads"].values())) == len(said["threads"])
        assert said["reached"] == sum(point == "hold" for point, _ in run.machine.emitted)
