"""Recordings that no healthy recorder writes: read as far as it makes sense, and told what was not.

What these tests protect: ``diagnose`` never raises and never waits over what lies in a run folder,
its memory stays bounded, and a report on half of a recording never passes for one on all of it.
"""

import json
import os
import random
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import dumps, loads
from harness.events import lines, schema
from harness.events.values import Int
from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script, context

RECORDINGS = Path(__file__).parent.parent / "recordings"
FIXTURES = {
    path.parent.name: (path.read_bytes(), (path.parent / "ended.json").read_bytes())
    for path in sorted(RECORDINGS.glob("*/events.jsonl"))
    if (path.parent / "ended.json").exists() and path.stat().st_size < 100_000
}
A = 4001
GRAD_MODE = "0/0: GLOBAL_STATE changed: grad_mode "


@pytest.fixture
def script(tmp_path):
    """A run that found CR101."""
    script = Script(tmp_path / "run")
    script.compile(MAIN, "0/0", ctx=context(grad=False))
    script.thread(A, "trainer")
    script.miss(A)
    script.compile(A, "0/1", reasons=[GRAD_MODE])
    return script


def events_of(folder):
    return folder / "events.jsonl"


def gaps(report, *, decisive=True):
    return {(g.name, g.state) for g in report.not_watched if g.decisive == decisive}


def rewrite(folder, change):
    """Change the lines of a recording; ``change`` takes and gives a list of bytes."""
    path = events_of(folder)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    return diagnose(folder)


class TestDamage:
    def test_bytes_of_two_writers_mixed(self, script):
        def mix(found):
            half = len(found[5]) // 2
            return [*found[:5], found[5][:half] + found[6], found[5][half:], *found[7:]]

        report = rewrite(script.finish(), mix)
        assert report.verdict == "found"
        assert {("recording", "damaged"), ("recorder", "lost")} <= gaps(report)

    def test_two_events_in_one_line_are_no_lines(self, script):
        report = rewrite(script.finish(), lambda f: [*f[:4], f[4].strip() + f[5], *f[6:]])
        assert ("recording", "damaged") in gaps(report)

    def test_a_clock_that_goes_back(self, script):
        for line in script.lines[-2:]:
            line["t_ns"] -= 10**9
        report = diagnose(script.finish())
        assert {f.code for f in report.findings} == {"CR101"}
        assert gaps(report) == {("recording", "clock")}
        assert dumps(report)

    def test_numbers_that_come_twice_are_left_out(self, script):
        folder = script.finish()
        once = diagnose(folder)
        report = rewrite(folder, lambda found: [*found[:-1], *found[-6:-1], found[-1]])
        assert report.counts == once.counts
        assert report.findings == once.findings
        assert gaps(report) == {("recording", "damaged")}

    def test_without_a_header_what_is_there_counts(self, script):
        report = rewrite(script.finish(), lambda found: found[1:])
        assert report.verdict == "found"
        assert ("recording", "damaged") in gaps(report)

    def test_without_a_header_nothing_is_clean(self, tmp_path):
        script = Script(tmp_path)
        script.call(MAIN)
        script.compile(MAIN, "0/0")
        folder = script.finish()
        assert diagnose(folder).verdict == "clean"
        assert rewrite(folder, lambda found: found[1:]).verdict == "incomplete"

    @pytest.mark.parametrize(
        "line",
        [
            b'{"point": "end", "t_ns": %s, "seq": 9, "pid": 1, "tid": 1, "thread": ""}'
            % (b"9" * 400),
            b'{"point": "end", "t_ns": 1e999, "seq": 9, "pid": 1, "tid": 1, "thread": ""}',
            b'{"point": "end", "t_ns": 1, "seq": "9", "pid": 1, "tid": 1, "thread": ""}',
            b'{"point": "end", "t_ns": 1, "seq": 9, "pid": 1, "tid": 1, "thread": "\xff"}',
            b'{"point": "end", "x": ' + b"[" * 100_000,
            b'{"point": "\\ud800", "x": ' + b'{"a":' * 5000,
            b'{"point": ["end"]}',
            b"\x00" * 5000,
        ],
    )
    def test_one_line_of_nonsense_costs_one_line(self, script, line):
        folder = script.finish()
        once = diagnose(folder)
        report = rewrite(folder, lambda found: [*found[:9], line + b"\n", *found[9:]])
        assert report.findings == once.findings
        assert gaps(report) == {("recording", "damaged")}

    def test_every_integer_of_the_format_is_bounded(self):
        """JSON has no largest integer, and arithmetic on one of 400 digits raises."""
        unbounded = []

        def walk(kind, path):
            info = msgspec.inspect.type_info(kind)
            todo, seen = [(info, path)], set()
            while todo:
                node, at = todo.pop()
                if isinstance(node, msgspec.inspect.IntType) and (
                    node.ge is None or node.le is None
                ):
                    unbounded.append(at)
                if isinstance(node, msgspec.inspect.StructType):
                    if (node.cls, at[:1]) in seen:
                        continue
                    seen.add((node.cls, at[:1]))
                    todo += [(field.type, (*at, field.name)) for field in node.fields]
                for name in ("item_type", "key_type", "value_type"):
                    if hasattr(node, name):
                        todo.append((getattr(node, name), at))
                todo += [(item, at) for item in getattr(node, "types", ())]
                item_types = getattr(node, "item_types", None)
                todo += [(item, at) for item in item_types or ()]

        for kind in schema.Event.__args__:
            walk(kind, (kind.__name__,))
        assert unbounded == []
        assert msgspec.convert(2**63 - 1, Int) == 2**63 - 1


class TestNewer:
    def newer(self, script, **changes):
        script.lines[0]["data"] = {**script.lines[0]["data"], "schema": 7, **changes}
        return script

    def test_what_is_known_is_read_and_the_rest_told(self, script):
        report = diagnose(self.newer(script).finish())
        assert report.verdict == "found"
        assert gaps(report) == {("recording", "newer")}
        (gap,) = (g for g in report.not_watched if g.state == "newer")
        assert "version 7" in gap.reason

    def test_a_header_with_other_fields_is_read_as_far_as_they_are_known(self, script):
        changed = self.newer(script, argv="python train.py", cpus={"count": 2}, torch="2.13.0")
        report = diagnose(changed.finish())
        assert report.environment.torch == "2.13.0"
        assert report.environment.argv == ()
        assert gaps(report) == {("recording", "newer")}

    def test_a_header_of_this_version_may_lack_nothing(self, script):
        del script.lines[0]["data"]["torch"]
        assert ("recording", "damaged") in gaps(diagnose(script.finish()))

    def test_clean_as_far_as_it_is_known_is_not_clean(self, tmp_path):
        script = Script(tmp_path)
        script.call(MAIN)
        script.compile(MAIN, "0/0")
        assert diagnose(self.newer(script).finish()).verdict == "incomplete"


class TestFiles:
    def plant(self, path, what):
        if what == "folder":
            path.mkdir()
        elif what == "pipe":
            os.mkfifo(path)
        elif what == "device":
            path.symlink_to("/dev/zero")
        elif what == "nowhere":
            path.symlink_to(path.parent / "gone")
        else:
            path.symlink_to(path)

    @pytest.mark.parametrize("what", ["folder", "pipe", "device", "loop"])
    @pytest.mark.parametrize("name", ["events-77.jsonl", "steady-4000-000001.jsonl"])
    def test_beside_a_recording(self, script, what, name):
        folder = script.finish()
        once = diagnose(folder)
        self.plant(folder / name, what)
        report = diagnose(folder)
        assert report.findings == once.findings
        kept = name.startswith("events")
        assert gaps(report, decisive=kept) >= {("recording", "damaged")}

    @pytest.mark.parametrize("what", ["folder", "pipe", "device", "nowhere"])
    def test_in_the_place_of_the_recording(self, script, what):
        folder = script.finish()
        events_of(folder).unlink()
        self.plant(events_of(folder), what)
        assert diagnose(folder).verdict == "failed"

    @pytest.mark.parametrize("what", ["folder", "pipe", "device", "loop"])
    @pytest.mark.parametrize("name", ["run.json", "ended.json"])
    def test_in_the_place_of_what_is_known_of_the_run(self, script, what, name):
        folder = script.finish()
        (folder / name).unlink(missing_ok=True)
        self.plant(folder / name, what)
        report = diagnose(folder)
        assert report.verdict == "found"
        assert name in {gap.name for gap in report.not_watched}

    def test_a_segment_that_goes_while_it_is_read_is_deleted_and_not_damaged(
        self, script, monkeypatch
    ):
        folder = script.finish()
        segment = folder / "steady-4000-000001.jsonl"
        segment.write_bytes(b"")
        opened = lines.open_regular

        def open_late(path):
            if path == segment:
                path.unlink()
            return opened(path)

        monkeypatch.setattr(lines, "open_regular", open_late)
        assert gaps(diagnose(folder)) == gaps(diagnose(folder), decisive=False) == set()


class TestSize:
    def peak(self, folder):
        tracemalloc.start()
        report = diagnose(folder)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return report, peak

    def test_messages_of_a_megabyte_are_kept_without_their_middle(self, script):
        for number in range(40):
            script.error(
                A, "future", "ValueError", f"{number}" + "x" * 2**20, number, future=number
            )
        report, peak = self.peak(script.finish())
        assert peak < 60 << 20
        message = next(e.message for e in report.errors if e.message.startswith("39x"))
        assert len(message) < 20_000
        assert "characters" in message

    def test_a_line_without_an_end_is_given_up(self, script, monkeypatch):
        monkeypatch.setattr(lines, "MAX_LINE", 4 << 20)
        folder = script.finish()
        once = diagnose(folder)
        with events_of(folder).open("ab") as file:
            file.write(b'{"point": "' + b"x" * (9 << 20))
        report, peak = self.peak(folder)
        assert report.findings == once.findings
        assert ("recording", "damaged") in gaps(report)
        assert peak < 40 << 20

    def test_what_follows_a_line_that_was_given_up_is_read(self, script, monkeypatch):
        monkeypatch.setattr(lines, "MAX_LINE", 2 << 20)
        folder = script.finish()
        once = diagnose(folder)
        long = b'{"point": "' + b"x" * (5 << 20) + b"\n"
        report = rewrite(folder, lambda found: [*found[:3], long, *found[3:]])
        assert report.findings == once.findings
        assert gaps(report) == {("recording", "damaged")}

    def test_thousands_of_processes_threads_points_and_probes(self, script):
        base = {"edge": "instant", "thread": "x", "t_ns": 1}
        for number in range(3000):
            one = {**base, "seq": 10**9 + number, "pid": 10**6 + number, "tid": 10**6 + number}
            script.lines.append({**one, "point": "thread_end"})
            script.lines.append({**one, "point": f"new-{number}"})
            probe = {"name": f"probe-{number}", "state": "live"}
            script.lines.append({**one, "pid": MAIN, "point": "probe", "data": probe})
        report, peak = self.peak(script.finish())
        assert ("recording", "too long") in gaps(report)
        assert len(report.not_watched) < 1000
        assert peak < 100 << 20


def mutate(raw, generator):
    """Do to a recording's bytes what disks, writers and versions can do."""
    raw = bytearray(raw)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(raw) + 1)
        length = generator.choice((1, 1, 8, 200))
        match generator.randrange(8):
            case 0:
                del raw[at : at + length]
            case 1:
                raw[at : at + length] = generator.randbytes(length)
            case 2:
                raw[at:at] = raw[: generator.randrange(600)]
            case 3:
                raw[at:at] = bytes(length)
            case 4:
                raw[at:at] = generator.choice((b"\n", b"9" * 30, b"null", b"[", b'"', b"\\ud83d"))
            case 5:
                found = bytes(raw).splitlines(keepends=True)
                generator.shuffle(found)
                raw = bytearray(b"".join(found))
            case 6:
                raw = bytearray(other_values(bytes(raw), generator))
            case _:
                del raw[at:]
        if not raw:
            break
    return bytes(raw)


def other_values(raw, generator):
    """Put values of other types, and unlikely ones, into one line."""
    found = raw.splitlines(keepends=True)
    at = generator.randrange(len(found))
    try:
        event = json.loads(found[at])
        target = generator.choice((event, event["data"]))
        key = generator.choice(list(target))
    except (ValueError, KeyError, TypeError, IndexError):
        return raw
    values = (
        None,
        -1,
        0,
        2**62,
        1e300,
        "",
        [],
        {},
        [[]],
        True,
        "\x00\x1b",
        "0/0",
        [2**62],
        "enter",
    )
    target[key] = generator.choice(values)
    found[at] = json.dumps(event).encode() + b"\n"
    return b"".join(found)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_mutated_recordings_give_reports(seed):
    """Sixty mutations for each seed; a failure's seed makes it again."""
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for _ in range(60):
            events, ended = FIXTURES[generator.choice(list(FIXTURES))]
            events_of(folder).write_bytes(mutate(events, generator))
            spoil = generator.random() < 0.2
            (folder / "ended.json").write_bytes(mutate(ended, generator) if spoil else ended)
            report = diagnose(folder)
            assert report.headline
            assert loads(dumps(report)) == report
            damaged = Recording(folder)
            timelines = damaged.timelines()
            if damaged.lines.damaged and timelines:
                assert report.verdict != "clean", "a line that cannot be read is a gap"
