"""What the report calls each process of a run."""

import msgspec

from harness.child.recorder import Recorder
from harness.diagnosis.build import diagnose
from harness.render import facts
from harness.render.view import View
from harness.statements import ThreadRef

HEADER = {
    "schema": 1,
    "harness": "x",
    "python": "3.11.7",
    "torch": "2.13.0",
    "triton": "",
    "cuda": "",
    "platform": "Linux",
    "cpus": 2,
    "argv": ["python", "-u", "train.py", "--lr", "1"],
    "started_unix": 1.0,
    "compile_detail": True,
}
PROCESSES = {
    "events.jsonl": (10, {}),
    "events-11.jsonl": (11, {"rank": "0"}),
    "events-12.jsonl": (12, {"rank": "1"}),
    "events-13.jsonl": (13, {}),
    "events-14.jsonl": (14, {"argv": ["python", "-c", "from multiprocessing.spawn import x"]}),
    "events-15.jsonl": (15, {"argv": ["python", "-W", "ignore", "/home/user/eval.py", "x"]}),
    "events-16.jsonl": (16, {"argv": ["python", "-m", "pack.score"]}),
}
EXPECTED = {
    11: "rank 0",
    12: "rank 1",
    13: "forked",
    14: "spawned by multiprocessing",
    15: "runs eval.py",
    16: "runs -m pack.score",
}


def test_every_process_has_its_role(tmp_path) -> None:
    for name, (pid, changes) in PROCESSES.items():
        recorder = Recorder(str(tmp_path), name=name)
        recorder.pid = pid
        recorder.emit("header", {**HEADER, **changes})
    report = diagnose(tmp_path)
    assert report.environment.roles == EXPECTED
    rows = dict(facts.environment(report))
    assert rows["processes"].startswith("10, 11 (rank 0), 12 (rank 1), 13 (forked)")
    view = View.of(report)
    assert view.name(ThreadRef(1, "worker", 12)) == "worker (rank 1, pid 12)"
    assert view.name(ThreadRef(1, "worker", 13)) == "worker (pid 13)"


def test_a_report_with_roles_is_read_back(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", {**HEADER, "rank": "3"})
    report = diagnose(tmp_path)
    assert list(report.environment.roles.values()) == ["rank 3"]
    again = msgspec.json.decode(msgspec.json.encode(report), type=type(report))
    assert again.environment.roles == report.environment.roles
