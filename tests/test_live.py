"""What is said of a run while it goes on: nothing that a later event takes back, at little cost."""

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import pytest

from dflash_min.errors import UsageError
from harness import live
from harness.alerts import Alerts
from harness.causes import CAUSES
from harness.diagnosis.build import diagnose
from harness.diagnosis.report import AfterWarmup, Finding, Remedy, Statement
from harness.events.files import event_files
from harness.live import AFTER_WARMUP, STOP_AFTER_S, UNDECIDED, Live, check_stop_on, decided

RECORDINGS = Path(__file__).parent / "recordings"
FIXTURES = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
CODES = [cause.EXPLANATION.code for cause in CAUSES]
STEPS = 60


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    """A diagnosis costs nothing: how long the next one waits is not up to the machine."""
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)


def growing(fixture, folder):
    """Write a recording event by event in the order of time; yield after every few of them."""
    for name in ("run.json",):
        if (fixture / name).exists():
            (folder / name).write_bytes((fixture / name).read_bytes())
    lines = [
        (json.loads(line)["t_ns"], path.name, line)
        for path in event_files(fixture)
        for line in path.read_bytes().splitlines(keepends=True)
    ]
    # Stable: each file's own lines stay in their order where two have one time.
    lines.sort(key=lambda entry: entry[0])
    every = max(len(lines) // STEPS, 1)
    with contextlib.ExitStack() as stack:
        files = {}
        for number, (_, name, line) in enumerate(lines, 1):
            if name not in files:
                files[name] = stack.enter_context((folder / name).open("wb", buffering=0))
            files[name].write(line)
            if number % every == 0 or number == len(lines):
                yield number


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name)
def test_no_later_event_takes_back_what_is_said(fixture, tmp_path):
    whole = diagnose(fixture)
    roots = {finding.code for finding in whole.findings if finding.root}
    for _ in growing(fixture, tmp_path):
        report = diagnose(live._Kept(tmp_path))
        assert {finding.code for finding in decided(report)} <= roots
        assert report.counts.compiles_after_warmup <= whole.counts.compiles_after_warmup
        if report.counts.compiles_after_warmup:
            assert live._first_compiles(report).keys() <= live._first_compiles(whole).keys()


def test_an_unread_future_may_still_be_read(tmp_path):
    """Why CR901 is among the undecided: here it would be said, and then taken back."""
    said = set()
    for _ in growing(RECORDINGS / "handled_future", tmp_path):
        said |= {finding.code for finding in diagnose(live._Kept(tmp_path)).findings}
    assert said == {"CR901"}
    assert diagnose(RECORDINGS / "handled_future").findings == ()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ticked(follower, clock, seconds):
    """Let so much time pass, in which a diagnosis that was begun comes to its end."""
    until = clock.now + seconds
    while clock.now < until:
        stop = follower.tick()
        if follower._worker is not None:
            follower._worker.join()
        clock.now += 0.25
        if stop:
            return stop
    return None


def test_it_says_once_what_was_found_and_when(tmp_path, capsys):
    clock = Clock()
    follower = Live("harness.watch", tmp_path, clock=clock)
    for _ in growing(RECORDINGS / "grad_mode", tmp_path):
        ticked(follower, clock, 100)
    # The miss comes first: it is enough for the cause to be known.
    found, compiled = capsys.readouterr().err.splitlines()
    assert re.match(r"harness\.watch: \d+\.\d s: CR101 grad-mode: Thread `drafter-0` ", found)
    assert re.match(
        r"harness\.watch: \d+\.\d s: first compile after warm-up: `block` in `drafter-0`$", compiled
    )


def test_a_cold_start_has_no_warm_up_to_compile_after(tmp_path, capsys):
    clock = Clock()
    follower = Live("harness.run", tmp_path, stop_on=AFTER_WARMUP, clock=clock)
    stops = [ticked(follower, clock, 100) for _ in growing(RECORDINGS / "cold_start", tmp_path)]
    said = capsys.readouterr().err
    assert re.search(r" s: compile without a warm-up: `\w+` in `.+`\n", said)
    assert "CR208 cold-start-in-several-threads" in said
    assert said.count("compile without a warm-up") == 1
    assert "after warm-up" not in said
    assert any(stop and stop.startswith(f"--stop-on {AFTER_WARMUP} (") for stop in stops)


def test_a_compile_after_a_warm_up_is_said_beside_a_cold_start(tmp_path, capsys):
    """Of two functions, one warmed up and one not: each has its line."""
    cold, warm = (diagnose(RECORDINGS / name) for name in ("cold_start", "grad_mode"))
    both = msgspec.structs.replace(
        cold,
        coverage=(*cold.coverage, *(elsewhere(code) for code in warm.coverage)),
    )
    follower = Live("harness.run", tmp_path, clock=Clock())
    for _ in range(2):
        follower._tell(both)
    said = [line.partition(" s: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.partition(":")[0] for line in said if not line.startswith("CR")] == [
        "compile without a warm-up",
        "first compile after warm-up",
    ]


def test_the_first_compiler_of_a_cold_start_is_no_warm_up(tmp_path, capsys):
    """It may have begun before the others called."""
    cold, warm = (diagnose(RECORDINGS / name) for name in ("cold_start", "grad_mode"))
    (code,) = cold.coverage
    first = msgspec.structs.replace(code, warmup=warm.coverage[0].warmup)
    report = msgspec.structs.replace(cold, coverage=(first,))
    Live("harness.run", tmp_path, clock=Clock())._tell(report)
    said = capsys.readouterr().err
    assert " s: compile without a warm-up: " in said
    assert "after warm-up" not in said


def elsewhere(code):
    """A code object of another process than any that was recorded."""
    return msgspec.structs.replace(code, pid=1)


def test_where_the_program_said_that_it_was_warm_its_word_counts(tmp_path, capsys):
    report = diagnose(RECORDINGS / "cold_start")
    marked = msgspec.structs.replace(report, after_warmup=AfterWarmup(compiles=1))
    Live("harness.run", tmp_path, clock=Clock())._tell(marked)
    assert " s: first compile after warm-up: " in capsys.readouterr().err


@pytest.mark.parametrize("stop_on", ["", "found"])
def test_an_error_is_said_before_the_end_and_stops_nothing(tmp_path, capsys, stop_on):
    clock = Clock()
    alerts = tmp_path / "alerts"
    folder = tmp_path / "run"
    folder.mkdir()
    follower = Live(
        "harness.watch", folder, stop_on=stop_on, alert=f"echo >> {alerts}", clock=clock
    )
    for _ in growing(RECORDINGS / "value_error", folder):
        assert ticked(follower, clock, 100) is None
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "CR905" in line]
    assert "CR905 program-failed-by-itself, so far: " in said
    assert "raised `ValueError" in said
    assert not alerts.exists()


def test_a_clean_run_is_not_mentioned(tmp_path, capsys):
    clock = Clock()
    follower = Live("harness.watch", tmp_path, stop_on="found", clock=clock)
    for _ in growing(RECORDINGS / "grad_mode+fixed", tmp_path):
        assert ticked(follower, clock, 100) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stop_on", ["found", "CR101", AFTER_WARMUP])
def test_it_stops_for_what_it_was_asked_to_stop_for(tmp_path, stop_on):
    clock = Clock()
    follower = Live("harness.watch", tmp_path, stop_on=stop_on, clock=clock)
    steps = growing(RECORDINGS / "grad_mode", tmp_path)
    stops = [ticked(follower, clock, STOP_AFTER_S + 5) for _ in steps]
    said = [stop for stop in stops if stop]
    assert said
    assert said[0].startswith(f"--stop-on {stop_on} (")
    assert stops[0] is None


def test_it_stops_for_nothing_else(tmp_path):
    clock = Clock()
    follower = Live("harness.watch", tmp_path, stop_on="CR103", clock=clock)
    for _ in growing(RECORDINGS / "grad_mode", tmp_path):
        assert ticked(follower, clock, 100) is None
    assert "CR101" in follower._said


def test_a_costly_diagnosis_is_seldom_made(tmp_path, monkeypatch):
    """At most one percent of one core, however many events of note there are."""
    cost = 0.7
    made = []

    class Costly(live._Diagnosis):
        def run(self):
            super().run()
            self.cpu_s = cost
            made.append(clock.now)

    monkeypatch.setattr(live, "_Diagnosis", Costly)
    clock = Clock()
    follower = Live("harness.watch", tmp_path, clock=clock)
    start = clock.now
    for _ in growing(RECORDINGS / "grad_mode", tmp_path):
        ticked(follower, clock, 10)
    assert len(made) > 2
    assert cost * (len(made) - 1) <= 0.01 * (clock.now - start)


def test_without_anything_of_note_nothing_is_diagnosed(tmp_path):
    clock = Clock()
    follower = Live("harness.watch", tmp_path, clock=clock)
    (tmp_path / "events.jsonl").write_bytes(
        b'{"point": "header", "t_ns": 1}\n{"point": "thread_end", "t_ns": 2}\n'
        b'{"point": "wrapper", "t_ns": 3, "data": {"fx_flag": false}}\n'
    )
    ticked(follower, clock, 10)
    assert follower._diagnose_at == 100.0
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"point": "wrapper", "t_ns": 4, "data": {"fx_flag": true}}\n')
    ticked(follower, clock, 10)
    assert follower._diagnose_at > 100.0


def test_a_diagnosis_that_fails_is_made_again_later(tmp_path, monkeypatch, capsys):
    calls = []

    def failing(recording):
        calls.append(clock.now)
        if len(calls) == 1:
            raise OSError("a segment went away")
        return diagnose(recording)

    monkeypatch.setattr(live, "diagnose", failing)
    clock = Clock()
    follower = Live("harness.watch", tmp_path, clock=clock)
    for _ in growing(RECORDINGS / "grad_mode", tmp_path):
        pass
    ticked(follower, clock, 200)
    assert calls[1] - calls[0] >= 60
    err = capsys.readouterr().err
    assert err.count("not diagnosed, and tried again: OSError: a segment went away") == 1
    assert "CR101" in err


@pytest.mark.parametrize("value", ["found", AFTER_WARMUP, "CR101", ""])
def test_what_can_be_asked_for(value):
    check_stop_on(value, CODES)


@pytest.mark.parametrize(
    ("value", "message"), [("CR901", "only at the end"), ("CR999", "neither"), ("yes", "neither")]
)
def test_what_would_never_stop_a_run_is_refused(value, message):
    with pytest.raises(UsageError, match=message):
        check_stop_on(value, CODES)


def test_every_undecided_cause_is_one():
    unbuilt = set(UNDECIDED) - set(CODES)
    assert not unbuilt


FINDING = Finding(
    code="CR101",
    title="grad-mode",
    root=True,
    pid=1,
    statements=(Statement("said", "observed"),),
    remedy=Remedy(text="mend it"),
)


@pytest.fixture
def said():
    return []


def test_an_alert_has_the_finding_and_is_given_once(tmp_path, said):
    out = tmp_path / "out"
    command = f'cat >> "{out}"; echo "$COMPILE_RACE_CODE $COMPILE_RACE_RUN" >> "{out}"'
    alerts = Alerts(command, tmp_path, said.append, limit_s=60)
    alerts.give(FINDING)
    alerts.give(FINDING)
    alerts.finish()
    text, environment = out.read_text().splitlines()
    assert json.loads(text)["statements"] == [
        {"text": "said", "certainty": "observed", "evidence": []}
    ]
    assert environment == f"CR101 {tmp_path}"
    assert said == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 3", "--alert for CR101 ended with exit code 3"),
        ("kill -9 $$", "--alert for CR101 ended with signal 9"),
        ("/nowhere/to/be/found 2> /dev/null", "--alert for CR101 ended with exit code 127"),
    ],
)
def test_an_alert_that_fails_is_told_and_not_fatal(tmp_path, said, command, message):
    alerts = Alerts(command, tmp_path, said.append, limit_s=60)
    alerts.give(FINDING)
    alerts.finish()
    assert said == [message]


def test_an_alert_that_hangs_is_left_behind(tmp_path, said):
    written = tmp_path / "pid"
    alerts = Alerts(f"echo $$ > {written}; exec sleep 600", tmp_path, said.append, limit_s=0.2)
    alerts.give(FINDING)
    until = time.monotonic() + 60
    while not (written.exists() and written.read_text().endswith("\n")):
        assert time.monotonic() < until, "the command never began"
        time.sleep(0.01)
    alerts.finish()
    pid = int(written.read_text())
    try:
        assert said == [
            f"--alert for CR101 still runs after 0.2 s and is left behind as process {pid}"
        ]
        assert os.getsid(pid) == pid  # a session of its own
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_alert_that_reads_nothing_holds_nobody_up(tmp_path, said):
    long = FINDING.__class__(
        **{
            **{name: getattr(FINDING, name) for name in FINDING.__struct_fields__},
            "statements": (Statement("x" * 1_000_000, "observed"),),
        }
    )
    # Held up, we would never come to its end.
    alerts = Alerts("exit 0", tmp_path, said.append, limit_s=60)
    alerts.give(long)
    alerts.finish()
    assert said == []


PROGRAM = """
    import threading, time, torch
    f = torch.compile(lambda x: x + 1, backend="eager")
    with torch.no_grad():
        f(torch.zeros(4))
    def work():
        for _ in range(600):
            f(torch.zeros(4))
            time.sleep(0.5)
    print("at work", flush=True)
    threads = [threading.Thread(target=work, name=f"worker-{n}") for n in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    print("never reached")
"""


def test_a_run_is_stopped_with_its_verdict_and_its_alert(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    alert = f'echo "$COMPILE_RACE_CODE" >> "{tmp_path}/alerts"'
    command = [sys.executable, "-m", "harness.watch", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--timeout", "200", "--stop-on", "found", "--alert", alert, "--", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("at work\nFOUND ")
    assert "never reached" not in done.stdout
    lines = done.stderr.splitlines()
    assert any(" s: CR101 grad-mode: " in line for line in lines), lines
    (ended,) = (tmp_path / "out").glob("*/ended.json")
    told = json.loads(ended.read_text())
    assert told["stopped_on"].startswith("--stop-on found (CR101")
    assert (told["deadline_hit"], told["killed_from_outside"]) == (False, False)
    assert told["wall_s"] < 150
    report = json.loads((ended.parent / "report.json").read_text())
    assert [f["code"] for f in report["findings"] if f["root"]] == ["CR101"]
    assert (tmp_path / "alerts").read_text() == "CR101\n"
