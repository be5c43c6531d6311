"""Endings, each told from the others: hand-made recordings with every kind of end."""

import pytest

from harness.diagnosis.build import diagnose
from harness.exits import ExitCode

from .build import MAIN, Script, frames

A, B = 4001, 4002


@pytest.fixture
def script(tmp_path):
    """A recording in which one thread compiles and another has called compiled code."""
    script = Script(tmp_path)
    script.compile(MAIN, "0/0")
    script.thread(A, "drafter")
    script.call(A)
    script.begin(A, "0/1")
    return script


def the(report, code="CR906"):
    (finding,) = (finding for finding in report.findings if finding.code == code)
    return finding


def texts(finding):
    return [statement.text for statement in finding.statements]


def killed(script, number, name, **ended):
    return diagnose(
        script.finish(
            None,
            end=False,
            signal=number,
            signal_name=name,
            killed_from_outside=True,
            **ended,
        )
    )


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (1, "SIGHUP"), (2, "SIGINT")])
def test_a_signal_that_nobody_here_sent(script, number, name):
    report = killed(script, number, name)
    assert (report.verdict, report.exit_code) == ("found", ExitCode.FOUND)
    assert report.headline == (
        f"The program was killed from outside by {name} while thread `drafter` compiled "
        "`flex_attention`."
    )
    finding = the(report)
    assert texts(finding)[0] == f"{name} ended the program; the harness had not sent it."
    assert any("`drafter` was in: compiles" in text for text in texts(finding))
    assert not any("memory" in text for text in texts(finding))
    assert report.not_watched[-1].reason == f"it was killed from outside by {name}"


@pytest.mark.parametrize("signal", [15, None])
def test_the_harness_was_told_to_end(script, signal):
    code = None if signal else 0
    folder = script.finish(
        code,
        end=False,
        signal=signal,
        signal_name="SIGTERM" if signal else "",
        killed_from_outside=True,
        told_to_end="SIGTERM",
        sent=["SIGTERM"],
    )
    report = diagnose(folder)
    end = "was ended by SIGTERM" if signal else "ended with exit code 0"
    assert report.headline.startswith(
        f"The harness was told to end by SIGTERM, and the program {end}"
    )
    assert texts(the(report))[:2] == [
        "The harness was told to end by SIGTERM.",
        f"It passed that on, and the program {end}.",
    ]


def test_the_harness_itself_was_killed(script):
    folder = script.finish(
        None, end=False, killed_from_outside=True, parent_killed=True, sent=["SIGTERM", "SIGKILL"]
    )
    report = diagnose(folder)
    assert report.headline.startswith("The harness itself was killed, and its guardian ended")
    assert texts(the(report))[1].startswith(
        "Its guardian ended the program with SIGTERM and then SIGKILL."
    )
    assert report.exit_code == ExitCode.FOUND


class TestOutOfMemory:
    counter = "/sys/fs/cgroup/job/memory.events"

    def test_the_kernel_counted_a_kill(self, script):
        report = killed(script, 9, "SIGKILL", oom_kills=1, oom_counter=self.counter)
        assert report.headline.startswith(
            "SIGKILL ended the program, likely from the kernel's out-of-memory killer, which "
            "killed 1 process meanwhile"
        )
        counted, inferred = the(report).statements[1:3]
        assert counted.text.startswith("The kernel killed 1 process of its memory cgroup")
        assert (counted.certainty, inferred.certainty) == ("observed", "inferred")
        assert "more memory" in the(report).remedy.text

    def test_it_counted_none(self, script):
        report = killed(script, 9, "SIGKILL", oom_kills=0, oom_counter=self.counter)
        assert report.headline.startswith("The program was killed from outside by SIGKILL")
        told = the(report).statements[1]
        assert "It was not the kernel's out-of-memory killer, as far as" in told.text
        assert told.certainty == "inferred", "the program may be in another cgroup than we"

    def test_nothing_counts(self, script):
        report = killed(script, 9, "SIGKILL")
        statement = the(report).statements[1]
        assert statement.certainty == "unknown"
        assert "no counter" in statement.text

    def test_a_counter_of_the_whole_machine_is_said_to_be_one(self, script):
        report = killed(script, 9, "SIGKILL", oom_kills=2, oom_counter="/proc/vmstat")
        assert "2 processes of the machine" in texts(the(report))[1]

    def test_a_kill_that_the_harness_made_is_none_of_the_kernels(self, script):
        """Told to end, it killed the program in the end; the kernel had killed some worker."""
        report = killed(
            script,
            9,
            "SIGKILL",
            told_to_end="SIGTERM",
            sent=["SIGTERM", "SIGKILL"],
            oom_kills=1,
            oom_counter=self.counter,
        )
        assert "out-of-memory" not in report.headline
        assert "more memory" not in the(report).remedy.text

    def test_it_follows_from_the_fallback_that_took_the_memory(self, script):
        data = {
            "kind": "fallback",
            "shape": [1, 32, 65536, 64],
            "dtype": "torch.float32",
            "scores_bytes": 32 * 65536 * 65536 * 4,
            "count": 1,
        }
        script.add("dense_attention", A, data, where=frames("attend"))
        report = killed(script, 9, "SIGKILL", oom_kills=1, oom_counter=self.counter)
        assert "CR401" in the(report).follows_from

    def test_any_other_kill_does_not(self, script):
        data = {"kind": "fallback", "shape": [1, 1, 8, 8], "dtype": "torch.float32", "count": 1}
        script.add("dense_attention", A, data, where=frames("attend"))
        assert the(killed(script, 15, "SIGTERM")).follows_from == ()


@pytest.mark.parametrize(("code", "name"), [(143, "SIGTERM"), (137, "SIGKILL"), (129, "SIGHUP")])
def test_a_shell_in_between_tells_of_the_signal(script, code, name):
    report = diagnose(script.finish(code, end=False))
    assert [finding.code for finding in report.findings] == ["CR906"]
    assert the(report).statements[0].certainty == "inferred"
    assert name in report.headline


def test_an_exit_code_like_a_signals_after_the_exit_handlers_is_the_programs_own(script):
    script.end(A, "0/1")
    assert [f.code for f in diagnose(script.finish(143)).findings] == ["CR905"]


def test_ctrl_c_at_the_terminal_is_no_finding(script):
    report = diagnose(script.finish(None, end=False, signal=2, interrupted=True, sent=["SIGINT"]))
    assert (report.verdict, report.exit_code) == ("incomplete", ExitCode.INTERRUPTED)


def test_what_the_harness_was_asked_to_stop_on_is_no_finding(script):
    report = diagnose(
        script.finish(None, end=False, signal=15, stopped_on="found CR101", sent=["SIGTERM"])
    )
    assert report.findings == ()
    assert report.not_watched[-1].reason == "it was ended early, as was asked for: found CR101"


def test_a_text_at_the_end_is_shown_and_no_traceback_is_spoken_of(script):
    script.end(A, "0/1")
    script.add("invariants", MAIN, {"fx_flag_clear": True, "busy_tids": []})
    script.add("compile_detail", MAIN, {"metrics": 2, "compiles": 2})
    script.add("end", MAIN, {"exit_text": "no shards in data/"})
    report = diagnose(script.finish(1, end=False))
    assert report.headline == "The program ended with exit code 1 by itself: no shards in data/."
    finding = the(report, "CR905")
    assert "traceback" not in finding.remedy.text
    (said,) = (s for s in finding.statements if "no shards in data/" in s.text)
    assert said.evidence == (script.seq,)


def test_a_silent_exit_code_has_a_remedy_of_its_own(script):
    script.end(A, "0/1")
    finding = the(diagnose(script.finish(7)), "CR905")
    assert finding.remedy.text.startswith("There is no traceback")


def test_an_error_is_still_told_with_its_traceback(script):
    script.end(A, "0/1")
    script.error(MAIN, "main", "ValueError", "bad")
    assert the(diagnose(script.finish(1)), "CR905").remedy.text.startswith("Read the traceback")


class TestHang:
    def hang(self, script, *waits):
        common = {"pid": MAIN, "file": "/home/user/project/train.py", "line": 7}
        return diagnose(
            script.finish(
                None,
                end=False,
                signal=15,
                deadline_hit=True,
                idle_at_deadline=True,
                sent=["SIGTERM"],
                waits=[{**common, **wait} for wait in waits],
            )
        )

    def test_the_ring_through_the_compile_lock_is_closed(self, script):
        script.thread(B, "holder")
        script.wait(B, A, "enter")
        report = self.hang(
            script,
            {"tid": MAIN, "thread": "MainThread", "what": "the end of a thread", "function": "f"},
            {"tid": A, "thread": "drafter", "what": "`app`", "read": True, "function": "backend"},
            {"tid": B, "thread": "holder", "what": "dynamo's compile lock", "function": "two"},
        )
        assert report.headline.endswith(
            "`holder` waited for dynamo's compile lock, held by `drafter`, which waited for `app`."
        )
        said = texts(the(report, "CR903"))
        assert said[1].startswith("`holder` waited for `compile_lock` in `two` (/home/user")
        assert said[2] == (
            "`drafter` waited for `app` in `backend` (/home/user/project/train.py:7), with "
            "dynamo's compile lock held."
        )
        assert said[3].startswith("`MainThread` waited for the end of a thread in `f`")
        certainties = [s.certainty for s in the(report, "CR903").statements[1:4]]
        assert certainties == ["observed", "inferred", "observed"]

    def test_an_owner_that_has_given_the_lock_up_since_does_not_hold_it(self, script):
        script.thread(B, "waiter")
        script.wait(B, MAIN, "enter")
        report = self.hang(
            script, {"tid": A, "thread": "drafter", "what": "`app`", "read": True, "function": "f"}
        )
        assert report.headline.endswith("held by `drafter`, which waited for `app`.")

    def test_the_programs_own_locks_are_named_where_torch_has_no_part(self, script):
        script.end(A, "0/1")
        wait = {"tid": A, "thread": "drafter", "what": "`weights`", "read": True, "function": "f"}
        report = self.hang(script, wait)
        assert report.headline.endswith("and `drafter` waited for `weights`.")

    def test_a_thread_of_another_process_is_named_with_it(self, script):
        wait = {"tid": 9, "thread": "worker", "what": "an event", "function": "f", "pid": 77}
        said = texts(the(self.hang(script, wait), "CR903"))
        assert any(text.startswith("`worker` of process 77 waited for an event") for text in said)

    def test_hundreds_of_waits_are_counted(self, script):
        waits = [
            {"tid": 0, "thread": f"many-{n}", "what": "`lock`", "read": True, "function": "f"}
            for n in range(300)
        ]
        said = texts(the(self.hang(script, *waits), "CR903"))
        assert "284 more threads waited for something too." in said
        assert len(said) < 40


class TestLaunchers:
    def test_a_launchers_text_is_left_out_beside_its_workers_finding(self, tmp_path):
        rank = Script(tmp_path, pid=5000)
        rank.compile(5000, "0/0")
        rank.error(5000, "main", "ValueError", "bad shard")
        rank.finish(1)
        (tmp_path / "events.jsonl").rename(tmp_path / "events-5000.jsonl")
        launcher = Script(tmp_path)
        launcher.add("end", MAIN, {"exit_text": "a worker failed"})
        report = diagnose(launcher.finish(1, end=False))
        assert [(f.code, f.pid) for f in report.findings] == [("CR905", 5000)]
