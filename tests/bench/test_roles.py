"""The bench of who waits for whom: shares of waits, samples of GPUs, and a run of it."""

import importlib
import json
import sys
import threading
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture
def roles(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    yield importlib.import_module("roles")
    for name in [name for name in sys.modules if name.partition(".")[0] in {"roles", "stepping"}]:
        del sys.modules[name]


def test_shares_are_of_the_time_between_two_moments(roles, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(roles.time, "perf_counter", lambda: now[0])
    waits = roles.Waits()

    def wait(begin, end, what):
        now[0] = begin
        with waits.waiting(what):
            now[0] = end

    wait(0.0, 12.0, "batch")  # two seconds of it
    wait(13.0, 14.0, "drafters")
    wait(15.0, 16.0, "batch")
    wait(30.0, 31.0, "drafters")
    now[0] = 19.0
    still = waits.waiting("batch")
    still.__enter__()
    name = threading.current_thread().name
    assert waits.shares(10.0, 20.0) == {name: pytest.approx({"batch": 0.4, "drafters": 0.1})}
    still.__exit__(None, None, None)


def test_a_gpus_idle_share_is_what_nvml_leaves(roles, monkeypatch):
    monkeypatch.setattr(roles, "SAMPLE_S", 0.001)
    sampled = threading.Semaphore(0)
    busy = {"cuda:0": [100, 50, 0], "cuda:1": [20, 20, 20]}
    left = {name: iter(values) for name, values in busy.items()}

    def utilization(device):
        value = next(left[device], None)
        if value is None:
            sampled.release()
            assert idle._ended.wait(60)
            raise RuntimeError("asked once too often")
        return value

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    idle = roles.Idle(busy)
    idle.start()
    assert sampled.acquire(timeout=60)
    assert idle.stop() == pytest.approx({"cuda:0": 0.5, "cuda:1": 0.8})


def test_what_keeps_nvml_from_being_asked_is_said(roles, monkeypatch):
    def utilization(device):
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    idle = roles.Idle(["cuda:0"])
    idle.start()
    idle._thread.join()
    assert idle.stop() == {}
    assert idle.why == "nvidia-ml-py does not seem to be installed"


@pytest.mark.usefixtures("_one_thread")
def test_a_layout_is_measured_and_written(roles, monkeypatch, tmp_path, capsys):
    out = tmp_path / "figures.json"
    words = "--device cpu --steps 3 --length 64 --layouts 2+2 --json"
    monkeypatch.setattr(sys, "argv", ["roles.py", *words.split(), str(out)])
    assert roles.main() == 0
    figures = json.loads(out.read_text())["layouts"]["2+2"]
    assert figures["tokens_per_s"] == pytest.approx(2 * 64e3 / figures["step_ms"])
    assert figures["compiles"] > figures["compiles_after_warmup"] == 0
    assert list(figures["threads"]) == ["target-0", "target-1", "drafter-0", "drafter-1"]
    for thread, of in figures["threads"].items():
        if thread.startswith("target"):
            # Three steps can pass while it makes a batch, or before it wakes.
            assert set(of["waits"]) == {"room"}
            assert 0 <= of["waits"]["room"] <= 1
        else:
            assert set(of["waits"]) == {"batch", "drafters"}
            assert min(of["waits"].values()) > 0
            assert sum(of["waits"].values()) < 1
        assert of["device"] == "cpu"
    assert "GPU idle: not measured, on a CPU" in capsys.readouterr().out


def test_layouts_are_compared_with_the_first(roles, monkeypatch, capsys):
    rates = {"1+1": 100.0, "2+2": 150.0, "5+3": 250.0}

    def measure(resolved, steps):
        layout = "+".join(str(len(of)) for of in vars(resolved.layout).values())
        return {
            "tokens_per_s": rates[layout],
            "step_ms": 1.0,
            "compiles_after_warmup": 0,
            "threads": {"drafter-0": {"device": "cpu", "waits": {"batch": 0.25}}},
            "idle": {},
            "idle_not_measured": "on a CPU",
        }

    monkeypatch.setattr(roles, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["roles.py", "--device", "cpu", "--layouts", *rates])
    assert roles.main() == 0
    said = capsys.readouterr().out
    assert "2+2 to 1+1: 1.50 times the tokens/s" in said
    assert "5+3 to 1+1: 2.50 times the tokens/s" in said
    assert said.count("drafter-0    cpu           -  25.0%         -         -\n") == 3


def test_ctrl_c_keeps_the_layouts_that_were_measured(roles, monkeypatch, tmp_path, capsys):
    out = tmp_path / "figures.json"
    figures = {"tokens_per_s": 1.0, "step_ms": 1.0, "compiles_after_warmup": 0, "threads": {}}
    figures |= {"idle": {}, "idle_not_measured": "on a CPU"}
    measured = iter([figures])

    def measure(resolved, steps):
        for of in measured:
            return of
        raise KeyboardInterrupt

    monkeypatch.setattr(roles, "measure", measure)
    words = ["--device", "cpu", "--layouts", "1+1", "2+2", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["roles.py", *words])
    assert roles.main() == 130
    said = capsys.readouterr()
    assert said.err == "interrupted: the figures are of the layouts that had ended\n"
    assert "== 1+1\n1 tokens/s" in said.out
    assert json.loads(out.read_text())["layouts"] == {"1+1": figures}


@pytest.mark.parametrize(("device", "least"), [("cpu", 5), ("cuda", 8)])
def test_targets_have_at_least_the_layers_of_the_default(roles, monkeypatch, capsys, device, least):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)

    def check(layers):
        parser = roles.arguments()
        options = parser.parse_args(["--device", device, "--target-layers", str(layers)])
        roles.check(parser, options)
        return options

    with pytest.raises(SystemExit, match="2"):
        check(least - 1)
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"--target-layers: a whole number from {least} to 1000 is needed" in error
    options = check(least)
    if device == "cpu":
        assert roles.settings(options, "1+1", 0).model.target_layers == least


@pytest.fixture
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_roles_do_not_share_gpus(roles, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(sys, "argv", ["roles.py", "--layouts", "2+2", "5+3"])
    with pytest.raises(SystemExit, match="2"):
        roles.main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "roles.py: error: --layouts 5+3: 8 GPUs are needed, 4 are visible"
