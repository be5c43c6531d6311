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
        assert report.headline.endswith("`holder` held `app` and waited for the compile lock.")
        said = texts(the(report, "CR307"))
        assert said[3].startswith("`holder` waited for `compile_lock` in `two` (/home/user")
        assert said[4] == (
            "`drafter` waited for `app` in `backend` (/home/user/project/train.py:7), with "
            "dynamo's compile lock held."
        )
        assert said[5].startswith("`MainThread` waited for the end of a thread in `f`")
        certainties = [s.certainty for s in the(report, "CR307").statements[3:6]]
        assert certainties == ["observed", "inferred", "observed"]

    def test_an_owner_that_has_given_the_lock_up_since_does_not_hold_it(self, script):
        script.thread(B, "waiter")
        script.wait(B, MAIN, "enter")
        report = self.hang(
            script, {"tid": A, "thread": "drafter", "what": "`app`", "read": True, "function": "f"}
        )
        assert "`drafter` held dynamo's compile lock while it compiled" in report.headline

    def test_a_ring_of_the_programs_own_locks_is_closed(self, script):
        script.end(A, "0/1")
        script.thread(B, "saver")
        report = self.hang(
            script,
            {"tid": MAIN, "thread": "MainThread", "what": "the end of a thread"},
            {"tid": A, "thread": "d", "what": "`weights`", "read": True, "holds": ["optimizer"]},
            {"tid": B, "thread": "s", "what": "`optimizer`", "read": True, "holds": ["weights"]},
        )
        ring = (
            "`drafter` waited for `weights`, held by `saver`, which waited for `optimizer`, held "
            "by `drafter`"
        )
        assert report.headline.endswith(f"and {ring}.")
        finding = the(report, "CR903")
        (said,) = (s for s in finding.statements if s.text.startswith(ring))
        assert said.certainty == "inferred"
        assert "compile lock: the program's own" in finding.remedy.text

    def test_a_name_that_two_objects_share_makes_no_ring_of_one_thread(self, script):
        script.end(A, "0/1")
        wait = {"tid": A, "thread": "d", "what": "`self.lock`", "read": True}
        report = self.hang(script, {**wait, "holds": ["self.lock"]})
        assert report.headline.endswith("and `drafter` waited for `self.lock`.")

    def test_a_ring_through_the_compile_lock_has_its_remedy(self, script):
        script.thread(B, "holder")
        script.wait(B, A, "enter")
        lock = "dynamo's compile lock"
        report = self.hang(
            script,
            {"tid": A, "thread": "drafter", "what": "`app`", "read": True},
            {"tid": B, "thread": "holder", "what": lock, "holds": ["app"]},
        )
        finding = the(report, "CR307")
        ring = (
            "`drafter` waited for `app`, held by `holder`, which waited for dynamo's compile lock"
        )
        assert any(s.text.startswith(f"{ring}, held by `drafter`") for s in finding.statements)
        assert "Take the locks in one order" in finding.remedy.text

    def test_where_no_lock_is_involved_none_is_spoken_of(self, script):
        script.end(A, "0/1")
        report = self.hang(script, {"tid": A, "thread": "drafter", "what": "an item of a queue"})
        remedy = the(report, "CR903").remedy.text
        assert "Call nothing that can compile" not in remedy
        assert "what each thread waited for" in remedy

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


FATAL = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000001{name} (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/user/project/train.py", line 10 in backend
  File "/home/user/venv/lib/python3.11/site-packages/torch/_dynamo/output_graph.py", line 3 in call
  File "/home/user/venv/lib/python3.11/site-packages/harness/child/probes/compiles.py", line 4 in x
  File "/home/user/project/train.py", line 7 in loop
"""
PLACE = (
    "in `string_at` (/usr/lib/python3.11/ctypes/__init__.py:519), called from `backend` "
    "(/home/user/project/train.py:10)"
)


class TestCrash:
    def crash(self, script, name="", **more):
        folder = script.finish(
            None,
            end=False,
            signal=11,
            signal_name="SIGSEGV",
            fatal_stacks=FATAL.format(name=name),
            **more,
        )
        return diagnose(folder)

    def test_it_says_where(self, script):
        report = self.crash(script)
        assert report.headline.endswith(
            "compiled `flex_attention`, in `string_at` (ctypes/__init__.py:519), called from "
            "`backend` (project/train.py:10)."
        )
        finding = the(report, "CR902")
        assert finding.statements[1].text == f"`drafter` crashed {PLACE}."
        assert finding.statements[1].certainty == "inferred", "by what it was compiling"
        (stack,) = finding.stacks
        assert (stack.thread.name, stack.title) == ("drafter", "crashed")
        assert [(f.function, f.user) for f in stack.frames] == [
            ("string_at", False),
            ("backend", True),
            ("call", False),
            ("loop", True),
        ]

    def test_python_may_name_the_thread(self, script):
        script.thread(B, "other")
        finding = the(self.crash(script, name=" [other]"), "CR902")
        assert (finding.statements[1].text, finding.statements[1].certainty) == (
            f"`other` crashed {PLACE}.",
            "observed",
        )

    def test_a_thread_that_cannot_be_told_is_none(self, script):
        script.end(A, "0/1")
        finding = the(self.crash(script), "CR902")
        assert finding.statements[1].text == f"A thread crashed {PLACE}."
        assert finding.stacks[0].thread.name == "the thread that crashed"

    @pytest.mark.parametrize("text", ["", "Fatal Python error: Aborted\n\n<no Python frame>"])
    def test_without_a_stack_nothing_is_said_of_it(self, script, text):
        folder = script.finish(None, end=False, signal=6, fatal_stacks=text)
        finding = the(diagnose(folder), "CR902")
        assert not any("crashed" in said for said in texts(finding))

    @pytest.mark.parametrize("threads", [1, 2])
    def test_the_remedy_fits_the_number_of_threads(self, tmp_path, threads):
        script = Script(tmp_path)
        script.begin(MAIN, "0/0")
        if threads == 2:
            script.thread(A, "drafter")
            script.call(A)
        text = the(self.crash(script), "CR902").remedy.text
        assert ("let only one thread compile" in text) == (threads == 2)


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
