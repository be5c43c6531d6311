"""The autotune probe on triton's own autotuner, around a kernel that Python runs: no GPU."""

import threading
import types

import pytest
from triton import Config
from triton.runtime import autotuner

from harness.child.probes import autotune
from harness.events import schema


def kernel_body(x, n, block):
    """What the stand-in is called by."""


class StandIn:
    arg_names = ("x", "n", "block")
    fn = staticmethod(kernel_body)

    def run(self, *args, **options):
        pass


class Gate:
    """Keeps the calling thread in the kernel's hook, with its arguments in place, if it is told."""

    def __init__(self):
        self.inside, self.open = threading.Event(), threading.Event()
        self.kept = ""

    def __call__(self, configs, named_args, **kwargs):
        if threading.current_thread().name == self.kept:
            self.inside.set()
            assert self.open.wait(60)
        return configs


@pytest.fixture
def probed(monkeypatch, recorder, recorded):
    """Makes autotuned kernels under the probe, and reads its events."""
    for name in ("run", "prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, getattr(autotuner.Autotuner, name))
    autotune.PROBE.install(recorder, None)

    def made(prune=None, bench=lambda call, quantiles: [1.0] * 3):
        hooks = None if prune is None else {"early_config_prune": prune}
        configs = [Config({"block": 1}), Config({"block": 2})]
        tuned = autotuner.autotune(configs, ["n"], prune_configs_by=hooks, do_bench=bench)
        return tuned(StandIn())

    def tunings():
        return [event for event in recorded() if isinstance(event, schema.Autotune)]

    return made, tunings


def start(name, call):
    errors = []

    def run():
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread, errors


def test_a_cold_call_is_recorded_and_a_call_that_finds_its_config_is_not(probed):
    made, tunings = probed
    kernel = made()
    for n in (1, 1, 2, 1):
        kernel[1](None, n)
    assert [(e.edge, e.data.name, e.data.met_tids) for e in tunings()] == [
        (edge, "kernel_body", ()) for _ in range(2) for edge in ("enter", "exit")
    ]
    assert {event.data.error for event in tunings()} == {""}


@pytest.mark.parametrize("warm", [True, False], ids=["a hit", "another tuning"])
def test_a_call_that_loses_its_arguments_names_who_called(probed, warm):
    made, tunings = probed
    gate = Gate()
    kernel = made(gate)
    if warm:
        kernel[1](None, 1)
    gate.kept = "tunes"
    thread, errors = start("tunes", lambda: kernel[1](None, 2))
    assert gate.inside.wait(60)
    kernel[1](None, 1)
    gate.open.set()
    thread.join()
    assert isinstance(errors[0], TypeError)
    (ended,) = (e for e in tunings() if (e.thread, e.edge) == ("tunes", "exit"))
    assert ended.data.met_tids == (threading.get_native_id(),)
    assert ended.data.arguments == "gone"
    assert "'NoneType' object is not a mapping" in ended.data.error


def test_another_calls_arguments_in_their_place_are_told_apart(probed):
    made, tunings = probed
    gate, threads = Gate(), []
    gate.kept = "other"

    def bench(call, quantiles):
        if threading.current_thread() is threading.main_thread():
            threads.append(start("other", lambda: kernel[1](None, 2))[0])
            assert gate.inside.wait(60)
        raise ValueError("no such config")

    kernel = made(gate, bench)
    with pytest.raises(ValueError, match="no such config"):
        kernel[1](None, 1)
    gate.open.set()
    threads[0].join()
    main = threading.get_native_id()
    (ended,) = (e for e in tunings() if e.tid == main and e.edge == "exit")
    assert ended.data.arguments == "others"
    assert ended.data.met_tids == (threads[0].native_id,)


def test_an_error_of_the_programs_leaves_the_call_its_arguments(probed):
    made, tunings = probed

    def bench(call, quantiles):
        raise AttributeError("'NoneType' object has no attribute 'shape'")

    with pytest.raises(AttributeError):
        made(bench=bench)[1](None, 1)
    assert tunings()[-1].data.arguments == "own"


def test_who_tuned_before_is_not_met(probed):
    made, tunings = probed
    kernel = made()
    for n in (1, 2):
        thread, _ = start("tunes", lambda n=n: kernel[1](None, n))
        thread.join()
    assert {event.data.met_tids for event in tunings()} == {()}


@pytest.fixture
def reached(recorder):
    """What a schedule is told; to be asked for before ``probed``."""
    points = []
    recorder.schedule = types.SimpleNamespace(reach=lambda *point: points.append(point))
    return points


def test_schedules_can_hold_a_cold_call_with_its_arguments_in_place(reached, probed):
    made, _ = probed
    kernel = made(bench=lambda call, quantiles: [float(kernel.nargs is None)] * 3)
    kernel[1](None, 1)
    kernel[1](None, 1)
    enter, leave = ("autotune", "enter"), ("autotune", "exit")
    # Where it is found to be cold, and before each of its two configs.
    assert reached == [enter, enter, enter, leave]
    assert {timing for timings in kernel.configs_timings.values() for timing in timings} == {0.0}
