"""The CUDA graph probe around a class that stands for torch's: no GPU is needed to see threads."""

import json
import threading
import types

import pytest

from harness.child import torch_symbols as symbols
from harness.child.probes import cuda_graphs
from harness.child.recorder import Recorder


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A graph class under the probe, and a function that reads its events."""

    class Graph:
        def capture_begin(self, pool=None, capture_error_mode="global"):
            del pool, capture_error_mode

        def capture_end(self):
            pass

        def replay(self):
            pass

    stream = types.SimpleNamespace(cuda_stream=0)
    cuda = types.SimpleNamespace(current_stream=lambda: stream)
    monkeypatch.setitem(
        cuda_graphs.sys.modules, "torch", types.SimpleNamespace(cuda=cuda, __version__="2.13.0")
    )
    module = types.SimpleNamespace(CUDAGraph=Graph)
    monkeypatch.setitem(cuda_graphs.sys.modules, symbols.REPLAY_GRAPH.module, module)
    recorder = Recorder(str(tmp_path))
    cuda_graphs.PROBE.install(recorder, None)

    def events():
        lines = (tmp_path / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["point"] == "cuda_graph"]

    return Graph, events


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return thread.native_id


def test_a_capture_has_its_mode_and_its_end(made):
    kind, events = made
    graph = kind()
    graph.capture_begin(None, "thread_local")
    graph.capture_end()
    begun, ended = events()
    assert (begun["edge"], begun["data"]["mode"]) == ("enter", "thread_local")
    assert (ended["edge"], ended["data"]["error"]) == ("exit", "")


def test_a_capture_that_fails_says_so(made, monkeypatch):
    kind, events = made

    def fails(self):
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(kind, "capture_end", cuda_graphs._wrap_end(fails, _recorder_of(kind)))
    graph = kind()
    graph.capture_begin()
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert "previous error" in events()[-1]["data"]["error"]


def _recorder_of(kind):
    return next(
        cell.cell_contents
        for cell in kind.capture_end.__closure__
        if isinstance(cell.cell_contents, Recorder)
    )


def test_who_captures_and_replays_alone_is_not_recorded(made):
    kind, events = made
    graph = kind()
    graph.capture_begin()
    graph.capture_end()
    for _ in range(5):
        graph.replay()
    assert len(events()) == 2


def test_replays_in_turn_name_the_thread_before_and_who_comes_back(made):
    kind, events = made
    graph = kind()
    graph.capture_begin()
    graph.capture_end()
    graph.replay()
    other = in_thread(graph.replay)
    graph.replay()
    here = threading.get_native_id()
    replays = [event["data"] for event in events() if event["data"]["what"] == "replay"]
    assert [(r["before_tid"], r["again"]) for r in replays] == [(here, False), (other, True)]
    assert {r["captured_tid"] for r in replays} == {here}
    assert {r["other_stream"] for r in replays} == {False}
