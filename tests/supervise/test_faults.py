"""What faulthandler left: texts told apart, and the signal that came first."""

import signal

from harness.supervise.ending import Faults, split_faults, take_faults


def test_faulthandlers_text_is_split_by_its_headings() -> None:
    fatal = "Fatal Python error: Segmentation fault\n\nThread 1\n"
    timeout = "Timeout (0:00:09)!\nThread 2\n"
    assert split_faults("") == ("", "")
    assert split_faults(fatal) == (fatal, "")
    assert split_faults(timeout) == ("", timeout)
    assert split_faults(timeout + fatal) == (fatal, timeout)


def test_a_crash_of_faulthandlers_own_does_not_hide_the_signal_before_it(tmp_path) -> None:
    segv, abort = "Fatal Python error: Segmentation fault\n", "Fatal Python error: Aborted\n"
    assert Faults(f"{abort}Thread 1\n  File {segv}").first_signal(11) == signal.SIGABRT
    assert Faults(segv).first_signal(11) == signal.SIGSEGV
    assert Faults("").first_signal(6) == signal.SIGABRT
    assert Faults(f"{abort}{segv}").first_signal(15) == signal.SIGTERM
    assert Faults(f"{abort}{segv}").first_signal(None) is None


def test_empty_files_of_faulthandlers_are_removed(tmp_path) -> None:
    (tmp_path / "faulthandler.txt").touch()
    (tmp_path / "faulthandler-7.txt").touch()
    (tmp_path / "faulthandler-8.txt").write_text("Fatal Python error: Aborted\n")
    assert take_faults(tmp_path) == Faults()
    assert [path.name for path in tmp_path.iterdir()] == ["faulthandler-8.txt"]
