"""The rules of a certificate on hand-made runs: no torch, no processes."""

import ast

import pytest

from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from dflash_min.resolve import resolve
from harness import certify
from harness.certificate import text
from harness.certificate.applicable import missing
from harness.certificate.conclusion import conclude
from harness.certificate.coverage import Table
from harness.certificate.model import Cell, Certificate, Suggestion, TriedRun
from harness.certificate.program_code import warmup_code, with_warmup
from harness.certificate.seen import context_of, seen
from harness.certificate.trainer_flags import warmup_flags
from harness.certify import main
from harness.schedule.arrivals import Arrival
from harness.schedule.named import NAMED
from harness.supervise.program import read_program
from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script, code, context

T1, T2 = 4101, 4102
AUTOCAST = {"cpu": [True, "torch.bfloat16"]}


def ask(script, tid, fits=(), rejects=(), *, ran=True, ctx=None, kind="tensor", length=8, **data):
    answers = [{"compile_id": number, "fits": True} for number in fits]
    answers += [{"compile_id": n, "fits": False, "guard": "size mismatch"} for n in rejects]
    asked = {
        "code": code(name="f"),
        "context": ctx or context(),
        "inputs": [{"name": "x", "shape": [length], "dtype": "torch.float32", "device": "cpu"}],
        "arguments": [{"name": "x", "kind": kind, "text": "" if kind == "tensor" else "Mask"}],
        "called": ["__main__", "f"],
        "ran": ran,
        "answers": answers,
        "entries": len(answers),
    }
    return script.add("asked", tid, {**asked, **data})


def warmed(folder, *, marked=False, torch="2.13.0"):
    script = Script(folder, torch=torch)
    ask(script, MAIN)
    script.compile(MAIN, "0/0", code(name="f"))
    if marked:
        script.add("phase", MAIN, {"name": "warmup_done"})
    script.thread(T1, "one")
    script.thread(T2, "two")
    return script


def table_of(script):
    run = seen(Recording(script.finish()))
    table = Table()
    table.add(run)
    return run, table


def test_a_hit_that_was_foretold_is_covered(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, ["0/0"])
    _, table = table_of(script)
    (cell,) = table.cells()
    assert (cell.state, cell.warmed, cell.hit, cell.fits, cell.disagreed) == (
        "covered",
        True,
        1,
        1,
        0,
    )


def test_a_miss_that_was_foretold_is_not_covered_and_agrees(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"])
    script.miss(T1, code(name="f"))
    _, table = table_of(script)
    (cell,) = table.cells()
    assert (cell.state, cell.missed, cell.disagreed) == ("not covered", 1, 0)
    assert cell.guards == ("size mismatch",)


@pytest.mark.parametrize("fits", [True, False])
def test_a_call_that_went_another_way_disagrees(tmp_path, fits) -> None:
    script = warmed(tmp_path)
    ask(script, T1, *((["0/0"],) if fits else ((), ["0/0"])))
    if fits:
        script.miss(T1, code(name="f"))
    _, table = table_of(script)
    (cell,) = table.cells()
    assert cell.disagreed == 1


def test_a_compile_that_ended_before_the_call_was_looked_up_explains_a_hit(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"], number=5)
    script.compile(T2, "0/1", code(name="f"), waiting=[4, 5])
    assert told(script) == (1, 0)


def test_a_compile_that_ended_after_the_call_was_looked_up_explains_nothing(tmp_path) -> None:
    script = warmed(tmp_path)
    script.begin(T2, "0/1", code(name="f"))
    ask(script, T1, rejects=["0/0"], number=5)
    script.end(T2, "0/1", code(name="f"), waiting=[4])
    assert told(script) == (0, 1)


@pytest.mark.parametrize("asked", [True, False])
def test_an_entry_that_is_still_to_be_added_though_its_compile_has_ended(tmp_path, asked) -> None:
    script = warmed(tmp_path)
    script.compile(T2, "0/1", code(name="f"))
    ask(script, T1, rejects=["0/1", "0/0"] if asked else ["0/0"], adding=["0/1"])
    assert told(script) == ((0, 1) if asked else (1, 0))


def test_an_entry_that_is_gone_explains_nothing(tmp_path) -> None:
    script = warmed(tmp_path)
    script.compile(T2, "0/1", code(name="f"))
    ask(script, T1, rejects=["0/0"], number=5)
    assert told(script) == (0, 1)


def test_what_only_others_were_asked_about_is_beside_nobodys_compile(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"], ran=False)
    script.compile(T2, "0/1", code(name="f"), waiting=[5])
    run, _ = table_of(script)
    assert not any(call.raced or call.disagreed for call in run.calls[1:])


def told(script):
    """How many calls were raced, and how many disagreed."""
    _, table = table_of(script)
    (cell,) = table.cells()
    return cell.raced, cell.disagreed


def test_a_new_entry_does_not_explain_a_miss_where_an_entry_fitted(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, ["0/0"], number=5)
    script.compile(T2, "0/1", code(name="f"), waiting=[5])
    script.miss(T1, code(name="f"))
    assert told(script) == (1, 1)


def test_a_compile_that_made_no_entry_explains_nothing(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"], number=5)
    script.compile(T2, "0/1", code(name="f"), ok=False, error="frame skipped", waiting=[5])
    assert told(script) == (0, 1)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_compile_for_another_backend_explains_nothing(tmp_path, asked_first) -> None:
    """Whichever of the two began later tells of the other's entry."""
    script = Script(tmp_path)
    script.thread(T1, "one")
    script.thread(T2, "two")
    ask(script, MAIN)
    asked, other = (MAIN, "0/0"), (T2, "0/1")
    first, second = (asked, other) if asked_first else (other, asked)
    script.compile(*first, code(name="f"), other_backends=[])
    script.compile(*second, code(name="f"), other_backends=[first[1]])
    ask(script, T1, rejects=["0/0"], adding=["0/1"])
    run, _ = table_of(script)
    assert [(call.raced, call.disagreed) for call in run.calls[1:]] == [(False, True)]


def test_where_the_call_s_backend_is_not_known_a_compile_for_any_explains_a_hit(tmp_path) -> None:
    """All entries are asked then, whatever backend they were made for."""
    script = warmed(tmp_path)
    script.compile(T2, "0/1", code(name="f"), other_backends=["0/0"])
    ask(script, T1, rejects=["0/1", "0/0"], number=5)
    script.compile(T2, "0/2", code(name="f"), other_backends=["0/0"], waiting=[5])
    assert told(script) == (1, 0)


def test_a_compile_of_the_same_backend_explains_a_hit(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"], number=5)
    script.compile(T2, "0/1", code(name="f"), other_backends=["0/7"], waiting=[5])
    assert told(script) == (1, 0)


def test_an_entry_made_after_the_warm_up_covers_too_late(tmp_path) -> None:
    script = warmed(tmp_path, marked=True)
    ask(script, T1, rejects=["0/0"], length=9)
    script.compile(T1, "0/1", code(name="f"))
    ask(script, T2, ["0/1"], ["0/0"], length=10)
    run, table = table_of(script)
    assert run.marked
    assert {cell.inputs: cell.state for cell in table.cells() if cell.threads} == {
        "x [9] float32": "not covered",
        "x [10] float32": "covered too late",
    }


def test_a_call_that_ran_eager_belongs_to_the_question_before_it(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, ["0/0"])
    began = script.t + 1
    ask(script, T1, ["0/0"], length=9)
    script.add("eager", T1, {"code": code(name="f"), "route": "unknown", "began_ns": began})
    _, table = table_of(script)
    missed = {cell.inputs: cell.missed for cell in table.cells()}
    assert missed == {"x [8] float32": 1, "x [9] float32": 0}


def test_questions_that_the_recorder_left_out_are_counted(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, ["0/0"])
    for number in (1, 2, 4):
        script.add("left_out", T1, {"of": "asked", "count": number})
    script.add("left_out", T1, {"of": "eager", "count": 8})
    _, table = table_of(script)
    assert table.left_out == 4


def test_what_was_only_asked_is_neither_hit_nor_missed(tmp_path) -> None:
    script = warmed(tmp_path)
    ask(script, T1, rejects=["0/0"], ran=False, length=9)
    _, table = table_of(script)
    cell = next(cell for cell in table.cells() if cell.threads)
    assert (cell.state, cell.ran, cell.asked_only) == ("would not be covered", 0, 1)
    assert not table.uncovered


def missed_calls(tmp_path, torch="2.13.0", **asked):
    script = warmed(tmp_path, marked=True, torch=torch)
    ask(script, T1, rejects=["0/0"], **asked)
    script.miss(T1, code(name="f"))
    script.backward(T1)
    return table_of(script)[1].uncovered


def test_the_code_is_python_and_has_the_context_the_call_and_the_backward(tmp_path) -> None:
    calls = missed_calls(tmp_path, ctx={**context(), "autocast": AUTOCAST})
    suggestion = warmup_code(calls)
    written = "\n".join(suggestion.lines)
    ast.parse(written)
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):' in written
    assert "f(torch.randn([8]))" in written
    assert ".backward()" in written
    assert suggestion.obstacle == ""


@pytest.mark.parametrize(("torch", "own"), [("2.11.0+cu130", False), ("2.12.0", True)])
def test_a_config_is_a_threads_own_only_where_it_is_per_thread(tmp_path, torch, own) -> None:
    """Up to 2.11 it can be what another thread's ``dynamic=True`` has put there for a moment."""
    patched = {**context(), "config": {"assume_static_by_default": False}}
    calls = missed_calls(tmp_path, torch, ctx=patched)
    written = "\n".join(warmup_code(calls).lines)
    assert ("config.patch(assume_static_by_default=False)" in written) is own
    assert [("config" in context_of(call)) for call in calls] == [own]


def test_inference_mode_has_no_backward(tmp_path) -> None:
    written = warmup_code(missed_calls(tmp_path, ctx=context(inference=True))).lines
    assert "with torch.inference_mode():" in written
    assert not any("backward" in line for line in written)


def test_what_only_the_program_can_make_stands_in_the_way(tmp_path) -> None:
    suggestion = warmup_code(missed_calls(tmp_path, kind="other"))
    ast.parse("\n".join(suggestion.lines))
    assert "argument x of `f` is a Mask" in suggestion.obstacle


def test_a_program_is_wrapped_only_where_it_says_that_its_warm_up_is_over(tmp_path) -> None:
    script = tmp_path / "program.py"
    script.write_text("print()")
    program = read_program(["-u", str(script), "8"])
    suggestion = Suggestion(lines=("import torch",))
    refused = with_warmup(tmp_path, program, suggestion, marked=False)
    assert refused.argv == ()
    assert "does not say where its warm-up ends" in refused.obstacle
    allowed = with_warmup(tmp_path, program, suggestion, marked=True)
    assert allowed.argv == ("-u", str(tmp_path / "with_warmup.py"), "8")
    ast.parse((tmp_path / "with_warmup.py").read_text())


@pytest.mark.parametrize(
    ("codes", "given", "flags"),
    [
        ({"CR101"}, {"warmup": "no_grad"}, "--warmup=grad"),
        ({"CR208", "CR303"}, {"warmup": "none"}, "--warmup=grad"),
        ({"CR201"}, {"warmup_lens": (128,)}, "--warmup-lens=128,192,224,256"),
        ({"CR204"}, {"warmup_devices": "first"}, "--warmup-devices=all"),
    ],
)
def test_the_trainer_has_flags_for_what_it_missed(codes, given, flags) -> None:
    config = TrainConfig(device="cpu", **given)
    suggestion, better = warmup_flags(config, resolve(config, 0), codes)
    assert suggestion.lines == (flags,)
    assert resolve(better, 0)


def test_the_trainer_has_no_flag_for_what_is_no_matter_of_warming_up() -> None:
    config = TrainConfig(device="cpu")
    assert warmup_flags(config, resolve(config, 0), {"CR310", "CR101"}) is None


def arrivals_of(*holds):
    return [
        Arrival(thread, point, edge, t=number, seq=number)
        for number, (thread, point, edge) in enumerate(holds, 1)
    ]


def test_a_plan_applies_where_two_threads_came_to_its_places() -> None:
    own = (("wrapper", "enter"), ("wrapper", "exit"))
    fx = (("fx_trace", "enter"), ("fx_trace", "exit"))
    found = arrivals_of(*(("t1", *at) for at in own + fx), *(("t2", *at) for at in own))
    assert missing(NAMED["fx-flag"], found) == ""
    alone = [arrival for arrival in found if arrival.thread == "t1"]
    assert "no 2 threads" in missing(NAMED["fx-flag"], alone)
    assert "dynamo_compile" in missing(NAMED["stampede"], found)


def test_main_and_the_warm_up_do_not_make_a_plan_apply() -> None:
    fx = [Arrival("main", "fx_trace", edge, t=n) for n, edge in enumerate(("enter", "exit"))]
    calls = [Arrival("t1", "wrapper", edge, t=n) for n, edge in enumerate(("enter", "exit"), 3)]
    assert "fx_trace" in missing(NAMED["fx-flag"], fx + calls)


def certificate(*kinds, cells=(), complete=True, compiles=0, interrupted=False, left_out=0):
    tested = [TriedRun(what="as it likes", name="no schedule", schedule="", kind=kinds[0])]
    tested += [
        TriedRun(what="exploration", name=str(n), schedule="", kind=kind, roots=("CR301",))
        for n, kind in enumerate(kinds[1:], 1)
    ]
    tested[-1] = TriedRun(
        what=tested[-1].what,
        name=tested[-1].name,
        schedule="",
        kind=tested[-1].kind,
        compiles_after_warmup=compiles,
    )
    return conclude(
        Certificate(
            verdict="failed",
            exit_code=3,
            headline="",
            tested=tuple(tested),
            coverage=tuple(cells),
            complete=complete,
            interrupted=interrupted,
            left_out=left_out,
        )
    )


def cell(**counts):
    return Cell(callable="f", file="p.py", line=1, device="cpu", context="", inputs="x", **counts)


HIT = cell(hit=2, fits=2, threads=("one", "two"))


@pytest.mark.parametrize(
    ("kinds", "more", "exit_code"),
    [
        (("clean", "clean", "clean"), {}, 0),
        (("clean", "clean", "not reached", "impossible"), {}, 0),
        (("clean", "found", "clean"), {}, 1),
        (("found",), {}, 1),
        (("clean", "clean"), {"cells": (cell(missed=1, rejected=1),)}, 1),
        (("clean", "clean"), {"compiles": 1}, 1),
        (("clean", "incomplete", "clean"), {}, 4),
        (("clean", "incomplete", "found"), {}, 1),
        (("clean", "failed", "clean"), {}, 3),
        (("clean", "failed", "found"), {}, 3),
        (("clean", "not reached"), {}, 4),
        (("clean", "clean"), {"complete": False}, 4),
        (("clean", "clean"), {"cells": ()}, 4),
        (("clean", "clean"), {"left_out": 1}, 4),
        (("incomplete",), {}, 4),
        (("failed",), {}, 3),
        (("nothing ran",), {}, 5),
        (("clean", "clean"), {"interrupted": True, "complete": False}, 130),
    ],
)
def test_the_exit_code(kinds, more, exit_code) -> None:
    assert certificate(*kinds, **{"cells": (HIT,), **more}).exit_code == exit_code


def test_the_headline_counts_only_schedules_that_were_followed() -> None:
    said = certificate("clean", "clean", "impossible", "not reached", cells=(HIT,)).headline
    assert "0 compiles after the warm-up and 0 findings in 1 schedule," in said
    assert "of 3 tried, 1 impossible and 1 not reached" in said


def test_texts_escape_what_torch_wrote() -> None:
    odd = cell(missed=1, rejected=1, guards=("device index \x00 | expected",))
    shown = certificate("clean", "clean", cells=(odd,))
    for written in (text.terminal(shown), text.markdown(shown)):
        assert "\x00" not in written
        assert "\\x00" in written.replace("&#92;", "\\")
    row = next(line for line in text.markdown(shown).splitlines() if "device index" in line)
    assert row.count(" | ") == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--explore", "0"], "--explore counts schedules"),
        (["-j", "0"], "--jobs counts runs"),
        (["--timeout", "nan"], "--timeout"),
        (["--threads", "0"], "--threads"),
        (["--", "no_such.py"], "no such script"),
    ],
)
def test_errors_of_use_are_one_line(words, said, capsys, tmp_path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--out", str(tmp_path / "out"), *words])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_second_round_that_fails_leaves_the_first_one_s_certificate(
    monkeypatch, tmp_path, capsys
) -> None:
    first = certificate("found")

    class Rounds:
        began = 0

        def __init__(self, prog, subject, extent, folder) -> None:
            self.subject = subject

        def run(self):
            Rounds.began += 1
            if Rounds.began == 2:
                raise UsageError("the program cannot be started")
            return first, self.subject

    monkeypatch.setattr(certify, "Proof", Rounds)
    with pytest.raises(SystemExit) as stop:
        main(["--out", str(tmp_path), "--threads", "2", "--apply"])
    assert stop.value.code == 2
    assert "cannot be started" in capsys.readouterr().err
    (written,) = tmp_path.glob("*/certificate.json")
    assert first.headline in written.read_text()
