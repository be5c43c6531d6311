"""A KeyboardInterrupt of the program's own beside one that SIGINT raised."""

import asyncio
import signal
import sys

import pytest

from harness.child.interrupted import is_raised_by_program
from harness.child.probes import invariants
from harness.events.schema import ThreadError


def own():
    raise KeyboardInterrupt


def signalled():
    signal.raise_signal(signal.SIGINT)


def own_after_an_error():
    try:
        int("one")
    except ValueError:
        raise KeyboardInterrupt from None


def let_through():
    try:
        signalled()
    except KeyboardInterrupt as error:
        error.add_note("seen")
        raise


def raised_anew():
    try:
        signalled()
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


def of_a_group():
    try:
        try:
            signalled()
        except KeyboardInterrupt as error:
            raise BaseExceptionGroup("several", [error]) from None
    except BaseExceptionGroup:
        raise KeyboardInterrupt from None


def by_asyncio():
    async def main():
        signalled()
        await asyncio.sleep(60)

    asyncio.run(main())


def by_its_own_handler():
    def handler(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    signalled()


@pytest.fixture
def _handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


WAYS = {
    own: True,
    own_after_an_error: True,
    signalled: False,
    let_through: False,
    raised_anew: False,
    of_a_group: False,
    by_asyncio: False,
    by_its_own_handler: False,
}


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_is_the_programs_own_only_if_no_signal_can_have_raised_it(way) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        way()
    assert is_raised_by_program(caught.value) == WAYS[way]


def test_one_of_the_programs_own_is_recorded_and_ends_it_by_sigint_as_ever(run) -> None:
    child = run("raise KeyboardInterrupt")
    assert child.code == -signal.SIGINT
    (error,) = child.of(ThreadError)
    assert (error.data.via, error.data.chain[0].type) == ("main", "KeyboardInterrupt")


def test_state_is_read_where_ctrl_c_broke_off_the_import_of_torch(monkeypatch) -> None:
    """Python then takes ``torch`` out of ``sys.modules``, and leaves parts of it there."""
    import torch.fx  # noqa: F401

    before = invariants.invariants()
    assert before["module_call_original"] is True
    monkeypatch.delitem(sys.modules, "torch")
    assert invariants.invariants() == before
    monkeypatch.delitem(sys.modules, "torch.nn")
    assert invariants.invariants() == {**before, "module_call_original": None}
