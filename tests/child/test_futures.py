"""Errors kept in futures, and who looked at them."""

import pytest

from harness.events.schema import FutureRead, ThreadError

HEAD = """
import asyncio, concurrent.futures as cf
def fails(): raise ValueError("kept")
pool = cf.ThreadPoolExecutor(1)
"""


def recorded(child) -> tuple[list[int], list[int]]:
    errors = [event.data for event in child.of(ThreadError)]
    assert {error.via for error in errors} <= {"future"}
    return [error.future for error in errors], [event.data.future for event in child.of(FutureRead)]


READS = {
    "result": "try: f.result()\nexcept ValueError: pass",
    "exception": "assert isinstance(f.exception(), ValueError)",
    "twice": "f.exception(); f.exception(1)\ntry: f.result(1)\nexcept ValueError: pass",
    "map": "f.exception()\ntry: list(pool.map(int, ['x']))\nexcept ValueError: pass",
    "callback": "f.add_done_callback(lambda done: done.exception())",
    "asyncio": """
async def main():
    try: await asyncio.wrap_future(f)
    except ValueError: pass
asyncio.run(main())
""",
}


@pytest.mark.parametrize("read", READS)
def test_a_future_that_was_read_is_recorded_as_read_once(run, read) -> None:
    child = run(f"{HEAD}\nf = pool.submit(fails)\ncf.wait([f])\n{READS[read]}\npool.shutdown()\n")
    assert child.err == ""
    errors, reads = recorded(child)
    assert reads == errors
    assert len(reads) == (2 if read == "map" else 1)


IGNORES = {
    "dropped": "pass",
    "waited for": "cf.wait([f]); list(cf.as_completed([f])); f.done()",
    "map not consumed": "pool.map(lambda _: 1 / 0, [1])",
    "timed out before it failed": """
import threading
gate = threading.Event()
late = pool.submit(lambda: (gate.wait(), 1 / 0))
try: late.result(0.01)
except cf.TimeoutError: gate.set()
""",
}


@pytest.mark.parametrize("ignore", IGNORES)
def test_a_future_that_nobody_read_is_not_recorded_as_read(run, ignore) -> None:
    child = run(f"{HEAD}\nf = pool.submit(fails)\n{IGNORES[ignore]}\npool.shutdown()\n")
    errors, reads = recorded(child)
    assert child.code == 0
    assert errors[0] == 1
    assert len(errors) == (1 if ignore in {"dropped", "waited for"} else 2)
    assert reads == []


def test_errors_are_numbered_and_come_from_the_worker(run) -> None:
    program = f"""{HEAD}
futures = [pool.submit(fails), pool.submit(int), pool.submit(fails)]
for number, future in enumerate(futures): print(number, type(future.exception()).__name__)
"""
    child = run(program)
    assert child.out.splitlines() == ["0 ValueError", "1 NoneType", "2 ValueError"]
    assert recorded(child) == ([1, 2], [1, 2])
    assert {event.thread for event in child.of(ThreadError)} == {"ThreadPoolExecutor-0_0"}
    assert child.of(ThreadError)[0].data.chain[0].frames[-1].function == "fails"


def test_a_result_is_returned_and_an_error_raised_as_before(run) -> None:
    program = f"""{HEAD}
print(pool.submit(lambda: 41).result(timeout=5))
f = cf.Future(); f.set_exception(None); print(f.exception(0), f.result(0))
g = cf.Future(); g.cancel()
try: g.result()
except cf.CancelledError: print("cancelled")
e = ValueError(); h = cf.Future(); h.set_exception(e); print(h.exception() is e)
"""
    child = run(program)
    assert child.out.splitlines() == ["41", "None None", "cancelled", "True"], child.err
