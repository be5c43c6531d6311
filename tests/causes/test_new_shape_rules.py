"""CR201: a new input is a finding only where another thread calls meanwhile."""

from harness.diagnosis.build import diagnose

from .build import MAIN
from .rules import SIZE, A, two_threads, warm


class TestNewShape:
    def recording(self, script):
        warm(script)
        script.thread(A, "trainer")
        script.miss(A)
        script.compile(A, "0/1", reasons=[SIZE])
        return script.finish()

    def test_alone_it_is_a_note(self, script):
        report = diagnose(self.recording(script))
        assert report.verdict == "clean"
        assert [note.code for note in report.notes] == ["CR201"]

    def test_a_warm_up_at_two_lengths_by_a_thread_that_goes_on_calling(self, script):
        """Main's own interval meets the workers', but nobody else was there when it compiled."""
        warm(script)
        script.miss(MAIN)
        script.compile(MAIN, "0/1", reasons=[SIZE])
        two_threads(script)
        script.call(MAIN)
        assert diagnose(script.finish()).verdict == "clean"
