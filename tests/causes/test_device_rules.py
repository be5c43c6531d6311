"""CR204: takes two GPUs to happen, so its recording is made by hand."""

from harness.causes import CAUSES
from harness.diagnosis.build import diagnose

from .rules import OTHER_DEVICE, SIZE, A, B, codes, find, roots, two_threads, warm


class TestDevice:
    def recording(self, script):
        inputs = [("query", (1, 8, 512, 64), "cuda:0")]
        warm(script, inputs=inputs)
        two_threads(script)
        script.miss(B)
        script.compile(
            B, "0/1", reasons=[OTHER_DEVICE], inputs=[("query", (1, 8, 512, 64), "cuda:1")]
        )
        script.call(A)
        script.backward(B)
        return script.finish()

    def test_a_device_that_was_not_warmed(self, script):
        report = diagnose(self.recording(script))
        assert codes(report) == roots(report) == {"CR204"}
        assert [thread.tid for thread in find(report, "CR204").threads] == [B]

    def test_without_the_cause_nothing_is_found(self, script):
        fewer = [cause for cause in CAUSES if cause.EXPLANATION.code != "CR204"]
        assert codes(diagnose(self.recording(script), causes=fewer)) == set()

    def test_a_size_that_a_later_entry_rejects_follows_from_it(self, script):
        warm(script)
        two_threads(script)
        script.compile(B, "0/1", reasons=[OTHER_DEVICE])
        script.miss(A)
        script.compile(A, "0/2", reasons=[OTHER_DEVICE, SIZE.replace("0/0", "0/1")])
        report = diagnose(script.finish())
        assert roots(report) == {"CR204"}
        assert find(report, "CR201").follows_from == ("CR204",)
