"""Folding keeps a timeline small and changes neither what is found nor what is counted."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.build import diagnose
from harness.timeline.folding import BOUNDS, Bounds, thin
from harness.timeline.recording import Recording

from ..causes.build import FX_MESSAGE, MAIN, Script, code, context, frames, fx_frames, read, write

RECORDINGS = Path(__file__).parent.parent / "recordings"
NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/events.jsonl"))
TIGHT = Bounds(records=24, calls=40, codes=4, threads=6, ends=2, recent=2, every=1)
TIDS = (MAIN, 4001, 4002, 4003)
REASONS = (
    "0/0: GLOBAL_STATE changed: grad_mode ",
    "0/0: tensor 'q' size mismatch at index 2. expected 512, actual 640",
    "0/0: tensor 'q' Tensor device index mismatch. Expected device index to be 0, actual 1",
)


class Maker:
    """Adds what threads do to a recording."""

    def __init__(self, folder):
        self.script = Script(folder)
        self.number = 0
        self.running = {}

    def do(self, what, tid, choice):
        getattr(self, what)(tid, choice)

    def call(self, tid, choice):
        self.script.call(tid, of=self.code(choice), ctx=self.context(choice))

    def miss(self, tid, choice):
        self.script.miss(tid, of=self.code(choice), ctx=self.context(choice))

    def compile(self, tid, choice):
        """A compile that ends later, so that others do something meanwhile."""
        if tid in self.running:
            name, of, reasons = self.running.pop(tid)
            self.script.end(tid, name, of, reasons, digest=f"d{choice % 2}")
            return
        self.number += 1
        of = self.code(choice)
        name = f"{of['id'] - 1}/{self.number}"
        self.script.begin(tid, name, of, self.context(choice))
        self.running[tid] = (name, of, [REASONS[choice % 3]] if choice % 4 else [])

    def flagged(self, tid, choice):
        tracing = [other for other in self.running if other != tid]
        data = {"code": self.code(choice), "fx_flag": True, "nested": "raise"}
        self.script.add("wrapper", tid, {**data, "tracing_tids": tracing}, where=frames("loop"))

    def mask(self, tid, choice):
        others = [other for other in self.running if other != tid]
        error = "KeyError: 'custom'" if choice == 0 else ""
        self.script.add("block_mask", tid, {"compiling_tids": others, "error": error})

    def error(self, tid, choice):
        kind = ("ValueError", f"bad shard {choice}") if choice else ("RuntimeError", FX_MESSAGE)
        where = None if choice else fx_frames()
        self.script.error(tid, "thread", *kind, self.script.seq, where=where)

    def future(self, tid, choice):
        number = self.script.seq
        self.script.error(tid, "future", "OSError", "gone", number, future=number)
        if choice % 2:
            self.script.add("future_read", tid, {"future": number})

    def dense(self, tid, choice):
        data = {"kind": "fallback", "shape": [1, 8, 64 + choice, 64], "scores_bytes": 4096}
        self.script.add("dense_attention", tid, {**data, "dtype": "float32"}, where=frames("f"))

    def eager(self, tid, choice):
        data = {"code": self.code(choice), "route": "stance", "detail": "force_eager"}
        data |= {"by_tid": TIDS[choice % 4], "count": 1}
        self.script.add("eager", tid, data, where=frames("loop"))

    def stance(self, tid, choice):
        data = {"stance": "force_eager" if choice % 2 else "default"}
        self.script.add("stance", tid, data, where=frames("evaluate"))

    @staticmethod
    def code(choice):
        return code(1 + choice % 2, f"block_{choice % 2}")

    @staticmethod
    def context(choice):
        return context(grad=choice % 3 > 0)


DEEDS = (
    *("call", "miss", "compile", "compile", "flagged", "mask", "error", "future", "dense"),
    *("eager", "stance"),
)
deeds = st.tuples(
    st.sampled_from(DEEDS), st.sampled_from(TIDS), st.integers(0, 5), st.integers(1, 12)
)


def found_in(folder, bounds):
    report = diagnose(Recording(folder, bounds))
    findings = {(f.code, f.root) for f in report.findings}
    compiles = {of.thread.name: of.compiles for of in report.threads if of.compiles}
    return report.verdict, findings, report.counts, {note.code for note in report.notes}, compiles


@settings(max_examples=120, deadline=None)
@given(st.lists(deeds, min_size=3, max_size=14))
def test_what_is_found_and_counted_stays(recorded):
    """The last number is how often the deed is done in a row: that is what gets folded."""
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(Path(folder))
        for tid in TIDS[1:]:
            maker.script.thread(tid, f"worker-{tid}")
        for what, tid, choice, times in recorded:
            for _ in range(times):
                maker.do(what, tid, choice)
        maker.script.finish()
        assert found_in(folder, TIGHT) == found_in(folder, BOUNDS)


def test_each_threads_compiles_are_counted_though_most_are_folded(tmp_path):
    script = Script(tmp_path)
    script.thread(4001, "worker")
    for number in range(200):
        script.miss(4001)
        script.compile(4001, f"0/{number}", reasons=[REASONS[1]], digest="d")
    script.finish()
    (timeline,) = Recording(tmp_path, TIGHT).timelines()
    assert sum(len(history.compiles) for history in timeline.program_codes()) < 100
    compiles = found_in(tmp_path, TIGHT)[-1]
    assert compiles == found_in(tmp_path, BOUNDS)[-1] == {"worker": 200}


@pytest.mark.parametrize("name", NAMES)
def test_the_findings_of_real_recordings_stay(name):
    assert found_in(RECORDINGS / name, TIGHT) == found_in(RECORDINGS / name, BOUNDS)


@pytest.mark.parametrize("name", ["grad_mode", "cold_start", "block_mask", "c04", "new_shape"])
def test_findings_stay_among_thousands_of_events_like_them(name, tmp_path):
    """Calls, misses and block masks come again and again, under other numbers."""
    events = read(RECORDINGS / name)["events.jsonl"]
    long, seq = [], 0
    for event in events:
        calm = event["point"] in {"guard_miss", "wrapper", "block_mask", "backward"}
        for _ in range(40 if calm and event["edge"] == "instant" else 1):
            seq += 1
            long.append({**event, "seq": seq})
    write(tmp_path, long, json.loads((RECORDINGS / name / "ended.json").read_text()))
    once, tight = found_in(RECORDINGS / name, BOUNDS), found_in(tmp_path, replace(TIGHT, every=7))
    assert {code for code, _ in tight[1]} >= {code for code, _ in once[1]}
    assert {code for code, root in tight[1] if root} == {code for code, root in once[1] if root}


class TestThin:
    class Record:
        def __init__(self, kind):
            self.kind = kind
            self.times = 1

    def thin(self, kinds, keep=lambda _: False, ends=2, recent=0):
        records = [self.Record(kind) for kind in kinds]
        kept = thin(records, lambda r: r.kind, keep, ends, recent)
        return "".join(f"{r.kind}{r.times}" for r in kept)

    def test_each_kind_keeps_both_ends_and_its_number(self):
        assert self.thin("aaaaaaabbb") == "a1a4a1a1b1b1b1"

    def test_kinds_do_not_push_each_other_out(self):
        assert self.thin("ab" * 6) == "a1b1a3b3a1b1a1b1"

    def test_the_latest_stay(self):
        assert self.thin("aaaaaaa", recent=3) == "a1" * 7
        assert self.thin("aaaaaaaa", recent=3) == "a1a2a1a1a1a1a1"

    def test_what_is_kept_is_not_counted_twice(self):
        marked = []

        def keep(record):
            marked.append(record)
            return len(marked) == 2

        assert self.thin("aaaaaaa", keep) == "a1a3a1a1a1"


def test_a_timeline_does_not_grow_with_its_recording(tmp_path):
    sizes = []
    for rounds in (200, 800):
        script = Script(tmp_path / str(rounds))
        for number in range(rounds):
            tid = 5000 + number % 7
            script.thread(tid, f"pool-{number}")
            script.call(tid)
            script.miss(tid)
            script.begin(tid, f"0/{number}")
            script.end(tid, f"0/{number}", reasons=[REASONS[1]])
            script.error(tid, "future", "OSError", "gone", number, future=number)
            script.add("thread_end", tid)
        (timeline,) = Recording(script.finish(), TIGHT).timelines()
        (history,) = timeline.program_codes()
        assert history.compiles_seen == rounds
        assert sum(call.times for call in history.uncovered) == rounds
        assert sum(error.times for error in timeline.errors) == rounds
        assert len(timeline.threads) + timeline.folded.threads == rounds + 1
        sizes.append(
            (
                len(history.compiles),
                len(history.uncovered),
                len(history.sightings),
                len(timeline.errors),
                len(timeline.threads),
                len(timeline.forwards),
            )
        )
    small, large = sizes
    assert all(b <= a + TIGHT.calls for a, b in zip(small, large, strict=True)), sizes
