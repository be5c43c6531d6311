"""Reading run folders: whole ones, cut ones, younger ones, damaged ones."""

import json

import pytest

from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script, code, context, read, write

A = 4001


@pytest.fixture
def script(tmp_path):
    script = Script(tmp_path / "run")
    script.compile(MAIN, "0/0")
    script.thread(A, "trainer")
    return script


def only(folder):
    recording = Recording(folder)
    (timeline,) = recording.timelines()
    return recording, timeline


def test_a_miss_a_wait_and_a_compile_are_one_call(script):
    missed = script.miss(A)
    waited = script.wait(A, MAIN, "enter")
    script.wait(A, MAIN, "exit")
    began = script.compile(A, "0/1", reasons=["0/0: GLOBAL_STATE changed: grad_mode "])
    _, timeline = only(script.finish())
    (history,) = timeline.program_codes()
    call = history.uncovered[-1]
    assert call.seqs == (missed, waited, waited + 1, began)
    assert call.t < call.wait.t0 < call.wait.t1 < call.compile.t0 < call.compile.t1
    assert call.compile.reasons[0].entry == "0/0"


def test_nested_compiles_are_told_apart(script):
    inner = code(2, "inner", internal=True)
    script.begin(A, "0/1")
    script.compile(A, "1/0", of=inner)
    script.end(A, "0/1")
    _, timeline = only(script.finish())
    spans = {c.compile_id: (c.t0, c.t1) for h in timeline.codes.values() for c in h.compiles}
    assert spans["0/1"][0] < spans["1/0"][0] < spans["1/0"][1] < spans["0/1"][1]
    assert [h.code.id for h in timeline.program_codes()] == [1]


def test_a_hit_before_an_unseen_call_is_not_its_beginning(script):
    script.call(A, of=code(2, "other"))
    script.compile(A, "0/1")
    _, timeline = only(script.finish())
    call = timeline.codes[1].uncovered[-1]
    assert call.t == call.compile.t0


def test_warm_up_ends_when_a_second_thread_calls(script):
    script.compile(MAIN, "0/1")
    script.call(A)
    script.compile(MAIN, "0/2")
    script.compile(A, "0/3")
    _, timeline = only(script.finish())
    history = timeline.codes[1]
    assert [c.compile_id for c in history.warmup()] == ["0/0", "0/1"]
    assert history.compiles_after_warmup() == 2


def test_a_last_line_without_its_end_is_left_out(script):
    folder = script.finish()
    path = folder / "events.jsonl"
    path.write_text(path.read_text()[:-20])
    recording, timeline = only(folder)
    assert recording.lines.cut == 1
    assert recording.lines.damaged == 0
    assert timeline.end_seq is None


def test_points_and_fields_that_are_not_known(script):
    script.add("quantum_leap", A, {"depth": 3})
    script.lines[-1]["planet"] = 7
    script.call(A, ctx={**context(), "aura": "blue"})
    recording, timeline = only(script.finish())
    assert recording.lines.unknown == {"quantum_leap": 1}
    assert recording.lines.damaged == 0
    assert timeline.lost == 0
    assert timeline.threads[A].context.grad_mode


@pytest.mark.parametrize("line", ['{"point": "guard_miss"}', "{", "[]", "null", '"x"', "\x00\x01"])
def test_damaged_lines_are_counted(script, line):
    folder = script.finish()
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:5], line + "\n", *lines[5:]]))
    recording, _ = only(folder)
    assert recording.lines.damaged == 1


def test_gaps_in_the_numbering_are_lost_events(script):
    del script.lines[-1]
    folder = script.finish()
    events = read(folder)["events.jsonl"]
    write(folder, [event for event in events if event["seq"] not in {4, 7}])
    assert only(folder)[1].lost == 3


def test_steps_are_folded_and_fill_their_gaps(script):
    steps = [script.add("step", A, {"step": n}) for n in range(50)]
    folder = script.finish()
    events = read(folder)["events.jsonl"]
    kept = [e for e in events if e["seq"] not in steps]
    write(folder, kept)
    write(folder, [e for e in events if e["seq"] in steps], name="steady-4000-000001.jsonl")
    recording, timeline = only(folder)
    assert timeline.threads[A].steps == 50
    assert timeline.lost == 0
    assert recording.deleted_segments == 0


def test_deleted_segments_are_told_and_leave_no_losses(script):
    script.add("step", A, {"step": 900})
    folder = script.finish()
    events = read(folder)["events.jsonl"]
    write(folder, [e for e in events if e["point"] != "step" and e["seq"] != 9])
    write(folder, [e for e in events if e["point"] == "step"], name="steady-4000-000003.jsonl")
    recording, timeline = only(folder)
    assert recording.deleted_segments == 2
    assert timeline.lost == 0


def test_processes_are_kept_apart_and_the_main_one_comes_first(tmp_path):
    main = Script(tmp_path)
    main.compile(MAIN, "0/0")
    child = Script(tmp_path, pid=5000)
    child.compile(5000, "0/0")
    child.finish()
    (tmp_path / "events.jsonl").rename(tmp_path / "events-5000.jsonl")
    main.finish()
    first, second = Recording(tmp_path).timelines()
    assert (first.pid, second.pid) == (MAIN, 5000)
    assert first.ended is not None
    assert second.ended is None
    assert len(second.compiles()) == 1


def test_reading_twice_gives_the_same(script):
    script.add("quantum_leap", A)
    recording = Recording(script.finish())
    recording.timelines()
    recording.timelines()
    assert recording.lines.unknown == {"quantum_leap": 1}


def test_an_unreadable_end_is_no_end(script):
    folder = script.finish()
    (folder / "ended.json").write_text('{"exit_code": ')
    assert Recording(folder).ended is None


def test_a_long_ladder_keeps_both_ends(script):
    for _ in range(400):
        script.miss(A)
    _, timeline = only(script.finish())
    ladder = timeline.threads[A].ladder
    rungs = ladder.rungs()
    assert len(rungs) + ladder.left_out == 401
    assert rungs[0].what == "started"
    assert [rung.t0 for rung in rungs] == sorted(rung.t0 for rung in rungs)


def test_a_thread_of_autograds_is_told_by_its_stack(script):
    library = [["/home/user/venv/torch/utils/checkpoint.py", 3, "recompute", False]]
    python = [*library, ["/usr/lib/python3.11/threading.py", 9, "_bootstrap", False]]
    raw = [*library, ["/home/user/project/train.py", 9, "loop", True]]
    for tid, where in ((4090, library), (4091, python), (4092, raw)):
        script.call(tid, where=where)
    _, timeline = only(script.finish())
    assert timeline.autograd == {4090}


@pytest.mark.parametrize("name", ["pt_autograd_0", "autograd-4090"])
def test_a_thread_of_autograds_keeps_a_name_and_loses_a_stand_in(script, name):
    where = [["/home/user/venv/torch/utils/checkpoint.py", 3, "recompute", False]]
    script.names[4090] = "Dummy-1" if name == "autograd-4090" else name
    script.names[4091] = "Dummy-2"
    script.call(4090, where=where)
    script.call(4091)
    _, timeline = only(script.finish())
    assert (timeline.name(4090), timeline.name(4091)) == (name, "Dummy-2")


def test_the_format_is_what_the_child_writes(tmp_path):
    """The recorder's own lines are read, control bytes and all."""
    from harness.child.recorder import Recorder

    recorder = Recorder(str(tmp_path))
    recorder.emit("future_read", {"future": 3})
    recorder.emit("thread_error", {"via": "thread", "chain": [link("\x00\x1b[31m\udcff")]})
    (timeline,) = Recording(tmp_path).timelines()
    assert timeline.futures_read == {3}
    assert timeline.errors[0].error.message.startswith("\x00\x1b[31m")


def link(message):
    return {"id": 1, "type": "ValueError", "message": message}


def test_names_with_quotes_and_newlines(script):
    script.names[A] = 'a "thread"\nwith lines'
    script.call(A)
    folder = script.finish()
    assert json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["point"] == "end"
    assert only(folder)[1].threads[A].name == 'a "thread"\nwith lines'
