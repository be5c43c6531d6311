"""Every verdict and exit code, and what leaves a verdict open."""

import json

import pytest

from harness.causes import CAUSES
from harness.diagnosis import gaps
from harness.diagnosis.build import Expectations, diagnose
from harness.diagnosis.report import NotWatched
from harness.diagnosis.verdict import decide
from harness.events import files
from harness.exits import ExitCode
from harness.supervise import guardian

from ..causes.build import MAIN, PROBES, Script, context, write

A, B = 4001, 4002
GRAD_MODE = "0/0: GLOBAL_STATE changed: grad_mode "


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path / "run")


def healthy(script):
    script.call(MAIN)
    script.compile(MAIN, "0/0")
    script.backward(MAIN)
    script.thread(A, "trainer")
    script.call(A)
    script.backward(A)
    return script


def faulty(script):
    script.compile(MAIN, "0/0", ctx=context(grad=False))
    script.thread(A, "trainer")
    script.miss(A)
    script.compile(A, "0/1", reasons=[GRAD_MODE])
    return script


def names(report, *, decisive=True):
    return [gap.name for gap in report.not_watched if gap.decisive == decisive]


GAP = NotWatched(name="guards", state="missing", reason="no such symbol")
SMALL_GAP = NotWatched(name="x", state="unknown", reason="", decisive=False)


@pytest.mark.parametrize(
    ("readable", "findings", "gaps", "unmet", "calls", "verdict"),
    [
        (True, 0, [], [], 3, "clean"),
        (True, 0, [SMALL_GAP], [], 3, "clean"),
        (True, 1, [], [], 3, "found"),
        (True, 1, [GAP], [GAP], 3, "found"),
        (True, 1, [], [], 0, "found"),
        (True, 0, [GAP], [], 3, "incomplete"),
        (True, 0, [GAP], [], 0, "incomplete"),
        (True, 0, [], [GAP], 3, "incomplete"),
        (True, 0, [], [], 0, "nothing ran"),
        (True, 0, [], [GAP], 0, "nothing ran"),
        (False, 1, [GAP], [], 3, "failed"),
    ],
)
def test_precedence(readable, findings, gaps, unmet, calls, verdict):
    found = diagnose_faulty_findings() * findings
    decided = decide(
        readable=readable, findings=found, gaps=gaps, unmet=unmet, compiled_calls=calls
    )
    assert decided == verdict


def diagnose_faulty_findings():
    return [object()]


def test_clean_says_what_was_covered(script):
    report = diagnose(healthy(script).finish())
    assert (report.verdict, report.exit_code) == ("clean", ExitCode.CLEAN)
    assert "`flex_attention`" in report.headline
    assert "1 warm-up compile, 0 after it" in report.headline
    (covered,) = report.coverage
    assert [(t.thread.tid, t.state, t.certainty) for t in covered.threads] == [
        (MAIN, "warm-up", "observed"),
        (A, "covered", "inferred"),
    ]


def test_found_is_1(script):
    report = diagnose(faulty(script).finish())
    assert (report.verdict, report.exit_code) == ("found", ExitCode.FOUND)
    (covered,) = report.coverage
    uncovered = covered.threads[-1]
    assert uncovered.state == "uncovered"
    assert uncovered.differs == ("gradients off there, on here",)
    (cache,) = report.caches
    assert [entry.context.split(",")[0] for entry in cache.entries] == ["grad off", "grad on"]
    assert cache.rejections[0].guard == "GLOBAL_STATE changed: grad_mode"
    assert cache.rejections[0].entry == "0/0"


@pytest.mark.parametrize("state", ["missing", "failed", "conflict", "disabled"])
@pytest.mark.parametrize("probe", PROBES)
def test_any_probe_that_is_not_live_is_incomplete(tmp_path, probe, state):
    report = diagnose(healthy(Script(tmp_path, probes={probe: state})).finish())
    assert (report.verdict, report.exit_code) == ("incomplete", ExitCode.INCOMPLETE)
    assert names(report) == [probe]
    assert probe in report.headline


def test_an_idle_probe_is_fine(tmp_path):
    script = Script(tmp_path, probes={"workload": "idle", "attention": "idle"})
    assert diagnose(healthy(script).finish()).verdict == "clean"


@pytest.mark.parametrize("probe", sorted({n for c in CAUSES for n in c.EXPLANATION.needs}))
def test_a_probe_that_a_cause_needs_and_nobody_speaks_of(script, probe):
    script.lines = [line for line in script.lines if line.get("data", {}).get("name") != probe]
    report = diagnose(renumbered(healthy(script)).finish())
    # Recordings from before a probe existed cannot speak of it, and stay what they were.
    later = probe in gaps._LATER_PROBES
    assert report.verdict == ("clean" if later else "incomplete")
    assert names(report, decisive=not later) == [probe]


def renumbered(script):
    for number, line in enumerate(script.lines, 1):
        line["seq"] = number
    script.seq = len(script.lines)
    return script


def test_the_last_state_of_a_probe_counts(script):
    healthy(script)
    script.add("probe", MAIN, {"name": "guards", "state": "conflict", "reason": "taken by x"})
    report = diagnose(script.finish())
    assert names(report) == ["guards"]
    assert "taken by x" in report.headline


def test_lost_events(script):
    healthy(script)
    script.seq += 2
    assert names(diagnose(script.finish())) == ["recorder"]


def test_events_that_the_programs_end_cut_off_are_told_and_decide_nothing(script):
    healthy(script)
    script.add("invariants", MAIN, {"fx_flag_clear": True, "busy_tids": []})
    script.add("compile_detail", MAIN, {"metrics": 1, "compiles": 1})
    script.seq += 1
    script.add("end", MAIN, {"under_way": [script.seq]})
    script.seq += 1  # numbered after the end, and not written
    script.add("thread_end", A)
    report = diagnose(script.finish())
    assert report.verdict == "clean"
    told = [(n.name, n.state, n.decisive) for n in report.not_watched]
    assert told == [("recorder", "cut off", False)]
    assert "2 events of process" in report.not_watched[0].reason


def test_events_that_the_recorder_itself_counted_as_lost(script):
    healthy(script)
    data = {"name": "recorder", "state": "failed", "reason": "3 events could not be written"}
    script.add("probe", MAIN, data)
    assert names(diagnose(script.finish())) == ["recorder"]


def test_the_two_counts_of_compiles_must_agree(script):
    healthy(script)
    script.add("compile_detail", MAIN, {"metrics": 1, "compiles": 2})
    assert names(diagnose(script.finish())) == ["compile detail"]


def test_without_detail_nothing_is_compared(tmp_path):
    script = healthy(Script(tmp_path, detail=False))
    script.add("compile_detail", MAIN, {"metrics": 0, "compiles": 1})
    report = diagnose(script.finish())
    assert report.verdict == "clean"
    assert names(report, decisive=False) == ["compile detail"]


@pytest.mark.parametrize(
    "ended",
    [
        {"exit_code": 0},
        {"exit_code": None, "signal": 15, "stopped_on": "CR101", "sent": ["SIGTERM"]},
        {"exit_code": None, "signal": 9, "deadline_hit": True, "idle_at_deadline": False},
    ],
)
def test_no_end_of_its_own(script, ended):
    report = diagnose(healthy(script).finish(end=False, **ended))
    assert report.verdict == "incomplete"
    assert names(report) == ["the program's end"]


def test_without_the_parents_word_a_recording_with_an_end_is_not_clean(script):
    # A program can still crash, or be given another exit code, after its exit handlers have run.
    folder = healthy(script).finish()
    (folder / "ended.json").unlink()
    report = diagnose(folder)
    assert (report.verdict, names(report)) == ("incomplete", ["the program's end"])
    assert "no ended.json is there" in report.headline


class TestRecordingsThatAreGone:
    """The parent wrote down which recordings there were."""

    @pytest.fixture
    def folder(self, script):
        folder = healthy(script).finish()
        other = healthy(Script(folder, pid=5000))
        write(folder, other.lines, name="events-5000.jsonl")
        ended = json.loads((folder / "ended.json").read_text())
        ended["recordings"] = files.recordings(folder)
        (folder / "ended.json").write_text(json.dumps(ended))
        return folder

    def test_all_there(self, folder):
        assert diagnose(folder).verdict == "clean"

    @pytest.mark.parametrize("name", ["events.jsonl", "events-5000.jsonl"])
    def test_one_is_gone(self, folder, name):
        (folder / name).unlink()
        report = diagnose(folder)
        assert report.verdict == "incomplete"
        assert name in names(report)
        assert name in report.headline

    def test_one_ends_earlier_at_the_end_of_a_line(self, folder):
        path = folder / "events-5000.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
        report = diagnose(folder)
        assert (report.verdict, names(report)) == ("incomplete", [path.name])

    def test_the_main_one_of_an_older_folder_is_gone(self, folder):
        ended = json.loads((folder / "ended.json").read_text())
        (folder / "ended.json").write_text(json.dumps({**ended, "recordings": {}}))
        (folder / "events.jsonl").unlink()
        report = diagnose(folder)
        assert report.verdict == "incomplete"
        assert "events.jsonl" in names(report)


def test_with_neither_it_is_incomplete(script):
    folder = healthy(script).finish(end=False)
    (folder / "ended.json").unlink()
    assert diagnose(folder).verdict == "incomplete"


@pytest.mark.parametrize("ended", [{"disk_full": True}, {"child_failure": "boot failed"}])
def test_what_the_parent_knows_of_the_recording(script, ended):
    assert diagnose(healthy(script).finish(**ended)).verdict == "incomplete"


def test_a_run_that_nobody_guarded_is_clean_and_says_so(script):
    report = diagnose(healthy(script).finish(guardian_failure="it could not be started: x"))
    assert report.verdict == "clean"
    (said,) = report.not_watched
    assert (said.name, said.decisive) == ("the guardian", False)
    assert said.reason.startswith("it could not be started: x; had the harness been killed")


def test_a_guardian_that_could_not_finish_the_run_says_why(script):
    folder = healthy(script).finish(end=False)
    (folder / "ended.json").unlink()
    assert guardian.FAILURE == files.GUARDIAN_FAILURE
    guardian._write_down(str(folder), LookupError("the harness is gone"))
    report = diagnose(folder)
    assert report.verdict == "incomplete"
    (said,) = [item for item in report.not_watched if item.name == "the guardian"]
    assert said.reason.endswith("could not finish the run: LookupError: the harness is gone")


def test_interrupted_is_130_whatever_was_found(script):
    report = diagnose(faulty(script).finish(None, signal=2, interrupted=True))
    assert (report.verdict, report.exit_code) == ("found", ExitCode.INTERRUPTED)


@pytest.mark.parametrize("end", [{"signal": 2, "sent": ["SIGINT"]}, {"exit_code": 1}])
def test_interrupted_before_anything_was_recorded_is_no_failure_of_ours(tmp_path, end):
    report = diagnose(write(tmp_path, [], {"exit_code": None, "interrupted": True, **end}))
    assert (report.verdict, report.exit_code) == ("incomplete", ExitCode.INTERRUPTED)
    assert "the program's end: it was interrupted from the keyboard before" in report.headline


@pytest.mark.parametrize(
    "ended", [{"child_failure": "boot failed"}, {"recordings": {"events.jsonl": 900}}]
)
def test_interrupted_does_not_hide_a_failure_of_ours(tmp_path, ended):
    report = diagnose(write(tmp_path, [], {"exit_code": 1, "interrupted": True, **ended}))
    assert (report.verdict, report.exit_code) == ("failed", ExitCode.FAILED)


def test_no_header_is_a_failure_of_ours(tmp_path):
    assert diagnose(write(tmp_path, [], {"exit_code": 0})).exit_code == ExitCode.FAILED


def test_no_folder_at_all(tmp_path):
    assert diagnose(tmp_path / "nowhere").verdict == "failed"


def test_nothing_ran(script):
    script.thread(A, "worker")
    report = diagnose(script.finish())
    assert (report.verdict, report.exit_code) == ("nothing ran", ExitCode.NOTHING_RAN)


def test_a_program_that_failed_before_any_compiled_call_is_found(script):
    script.error(MAIN, "main", "ImportError", "no module named x")
    assert [f.code for f in diagnose(script.finish(1)).findings] == ["CR905"]


class TestExpectations:
    def recording(self, script, threads, *, backward=True):
        script.call(MAIN)
        script.compile(MAIN, "0/0")
        script.backward(MAIN)
        for number in range(threads):
            tid = script.thread(A + number, f"drafter-{number}")
            script.call(tid)
            if backward:
                script.backward(tid)
        return script.finish()

    def test_met(self, script):
        report = diagnose(self.recording(script, 2), Expectations(threads=2))
        assert report.verdict == "clean"

    def test_the_main_thread_does_not_count(self, script):
        report = diagnose(self.recording(script, 2), Expectations(threads=3))
        assert report.verdict == "incomplete"
        assert names(report) == ["threads"]
        assert "2 threads called compiled code and backward" in report.headline

    def test_a_thread_without_backward_does_not_count(self, script):
        folder = self.recording(script, 2, backward=False)
        assert diagnose(folder, Expectations(threads=2)).verdict == "incomplete"

    def test_what_is_found_is_found(self, script):
        report = diagnose(faulty(script).finish(), Expectations(threads=3))
        assert report.verdict == "found"


@pytest.mark.parametrize("torch", [True, False])
@pytest.mark.parametrize(("option", "remedy"), [("-I", "leave that option out"), ("", "hand on")])
def test_a_child_past_the_watch_leaves_the_verdict_open_if_it_had_torch(
    script, option, remedy, torch
):
    script.call(MAIN)
    script.compile(MAIN, "0/0")
    child = {"pid": 77, "command": "python child.py", "option": option, "torch": torch}
    report = diagnose(script.finish(unwatched=[child]))
    (gap,) = (gap for gap in report.not_watched if gap.name == "child process")
    assert (gap.state, gap.decisive) == ("not watched", torch)
    assert "`python child.py` (process 77)" in gap.reason
    assert remedy in gap.reason
    assert report.verdict == ("incomplete" if torch else "clean")
