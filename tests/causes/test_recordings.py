"""Real recordings, each with the findings that it must give, and how much they depend on."""

import json
import random
import re
from pathlib import Path

import pytest

from harness.causes import CAUSES
from harness.diagnosis.build import diagnose

from .build import read, write

RECORDINGS = Path(__file__).parent.parent / "recordings"

# Verdict, roots, and the codes of all findings, for each recording.
EXPECTED = {
    "grad_mode": ("found", {"CR101"}, {"CR101", "CR303"}),
    "grad_mode+nodetail": ("found", {"CR101"}, {"CR101", "CR303"}),
    "grad_mode+t211": ("found", {"CR101"}, {"CR101", "CR303"}),
    "grad_mode+fixed": ("clean", set(), set()),
    "inference_mode": ("found", {"CR102"}, {"CR102", "CR303"}),
    "inference_mode+fixed": ("clean", set(), set()),
    "grad_and_autocast": ("found", {"CR101", "CR103"}, {"CR101", "CR103"}),
    "c01": ("found", {"CR103"}, {"CR103", "CR303"}),
    "autocast+fixed": ("clean", set(), set()),
    "default_device": ("found", {"CR104"}, {"CR104", "CR303"}),
    "default_device+fixed": ("clean", set(), set()),
    "num_threads": ("found", {"CR105"}, {"CR105"}),
    "numeric_flags": ("found", {"CR106"}, {"CR106", "CR303"}),
    "recompile_limit": ("found", {"CR107"}, {"CR107"}),
    "recompile_limit+fixed": ("clean", set(), set()),
    "new_shape": ("found", {"CR201"}, {"CR201", "CR303"}),
    "new_shape+fixed": ("clean", set(), set()),
    "new_shape_alone": ("clean", set(), set()),
    "captured_tensor": ("found", {"CR202"}, {"CR202", "CR303"}),
    "captured_tensor+fixed": ("clean", set(), set()),
    "requires_grad": ("found", {"CR203"}, {"CR203", "CR303"}),
    "dispatch_keys": ("found", {"CR203"}, {"CR203", "CR303"}),
    "dtype": ("found", {"CR205"}, {"CR205", "CR303"}),
    "layout": ("found", {"CR205"}, {"CR205", "CR303"}),
    "python_value": ("found", {"CR206"}, {"CR206", "CR303"}),
    "dynamic_marking": ("found", {"CR209"}, {"CR209", "CR303"}),
    "backward_not_warmed": ("found", {"CR207"}, {"CR207"}),
    "backward_not_warmed+fixed": ("clean", set(), set()),
    "cold_start": ("found", {"CR208"}, {"CR208", "CR303"}),
    "cold_start+fixed": ("clean", set(), set()),
    "closure_in_each_thread": ("found", {"CR208"}, {"CR208"}),
    "closure_in_each_thread+fixed": ("clean", set(), set()),
    "c04": ("found", {"CR301"}, {"CR301"}),
    "fx_flag_in_compile+t211": ("found", {"CR101"}, {"CR101", "CR301", "CR901"}),
    "fx_flag_left_set": ("found", {"CR302"}, {"CR302"}),
    "config_patch_leak+t211": ("found", {"CR305"}, {"CR305"}),
    "reset_under_load": ("found", {"CR306"}, {"CR306"}),
    "reset_crash": ("found", {"CR306"}, {"CR306"}),
    "fullgraph_counter": ("found", {"CR309"}, {"CR309", "CR901"}),
    "is_compiling_seen": ("found", {"CR304"}, {"CR304"}),
    "is_compiling_seen+fixed": ("clean", set(), set()),
    "fx_traces_overlap": ("found", {"CR302", "CR308"}, {"CR302", "CR308", "CR901"}),
    "fx_traces_overlap+fixed": ("clean", set(), set()),
    "block_mask": ("found", {"CR310"}, {"CR310", "CR901"}),
    "c05": ("found", {"CR401"}, {"CR401", "CR405"}),
    "stance_leak": ("found", {"CR312"}, {"CR312"}),
    "stance_leak+fixed": ("clean", set(), set()),
    "dispatch_mode": ("found", {"CR318"}, {"CR318"}),
    "dispatch_mode+fixed": ("clean", set(), set()),
    "cache_lookup": ("found", {"CR319"}, {"CR319"}),
    "cache_lookup+fixed": ("clean", set(), set()),
    "limit_used_up": ("found", {"CR403"}, {"CR403"}),
    "limit_used_up+fixed": ("clean", set(), set()),
    "checkpoint_mismatch": ("found", {"CR312"}, {"CR312", "CR404", "CR901"}),
    "own_ways": ("clean", set(), set()),
    "h200_autograd": ("incomplete", set(), set()),  # it has no ended.json
    "cold_autotune": ("found", {"CR311"}, {"CR311", "CR901"}),
    "cold_autotune+fixed": ("clean", set(), set()),
    "dense_after_limit": ("found", {"CR107"}, {"CR107", "CR401"}),
    "dense_under_foreign_trace": ("found", {"CR301"}, {"CR301", "CR401", "CR901"}),
    "dense_out_of_memory": ("found", {"CR401"}, {"CR401", "CR402", "CR901"}),
    "dense_out_of_memory+fixed": ("clean", set(), set()),
    "block_mask_out_of_memory": ("found", {"CR406"}, {"CR406", "CR901"}),
    "out_of_memory": ("found", {"CR904"}, {"CR904", "CR901"}),
    "swallowed_future": ("found", {"CR901"}, {"CR901"}),
    "handled_future": ("clean", set(), set()),
    "crash_in_compile": ("found", {"CR902"}, {"CR902"}),
    "crash_after_compile+t211": ("found", {"CR902"}, {"CR902"}),
    "device_guard_freed+t211": ("found", {"CR320"}, {"CR320"}),
    "device_guard_freed+fixed": ("clean", set(), set()),
    "c08": ("found", {"CR307"}, {"CR307"}),
    "lock_order": ("found", {"CR307"}, {"CR307"}),
    "fork_while_compiling": ("found", {"CR313"}, {"CR313"}),
    "fork_while_compiling+fixed": ("clean", set(), set()),
    "container_mutated": ("found", {"CR315"}, {"CR315", "CR901"}),
    "container_mutated+fixed": ("clean", set(), set()),
    "compiled_autograd": ("found", {"CR316"}, {"CR316", "CR901"}),
    "lazy_import": ("found", {"CR317"}, {"CR317", "CR901"}),
    "lazy_import+fixed": ("clean", set(), set()),
    "value_error": ("found", {"CR905"}, {"CR905"}),
    "two_locks": ("found", {"CR903"}, {"CR903"}),
    "killed_in_compile": ("found", {"CR906"}, {"CR906"}),
    "exit_code": ("found", {"CR905"}, {"CR905"}),
    "left_with_a_text": ("found", {"CR905"}, {"CR905"}),
    "single_thread": ("clean", set(), set()),
    "both_modes_in_turn": ("clean", set(), set()),
    "c06": ("clean", set(), set()),
    "plain": ("nothing ran", set(), set()),
    "block_mask_in_a_group": ("found", {"CR101"}, {"CR101", "CR310"}),
    "h200_no_grad": ("found", {"CR101"}, {"CR101", "CR303", "CR301"}),
    "h200_grad": ("clean", set(), set()),
    "h200_wrong_device": ("found", {"CR601"}, {"CR601", "CR901"}),
    "h200_subproc_pool": ("clean", set(), set()),
}
# Recordings that need a cause, for the proof that each cause is needed.
NEEDED = {
    "CR101": "grad_mode",
    "CR102": "inference_mode",
    "CR103": "c01",
    "CR104": "default_device",
    "CR105": "num_threads",
    "CR106": "numeric_flags",
    "CR107": "recompile_limit",
    "CR201": "new_shape",
    "CR202": "captured_tensor",
    "CR203": "requires_grad",
    "CR205": "dtype",
    "CR206": "python_value",
    "CR207": "backward_not_warmed",
    "CR208": "cold_start",
    "CR209": "dynamic_marking",
    "CR301": "c04",
    "CR302": "fx_flag_left_set",
    "CR303": "grad_mode",
    "CR304": "is_compiling_seen",
    "CR305": "config_patch_leak+t211",
    "CR306": "reset_crash",
    "CR309": "fullgraph_counter",
    "CR308": "fx_traces_overlap",
    "CR307": "c08",
    "CR310": "block_mask",
    "CR311": "cold_autotune",
    "CR312": "stance_leak",
    "CR313": "fork_while_compiling",
    "CR315": "container_mutated",
    "CR316": "compiled_autograd",
    "CR317": "lazy_import",
    "CR318": "dispatch_mode",
    "CR319": "cache_lookup",
    "CR320": "device_guard_freed+t211",
    "CR401": "c05",
    "CR403": "limit_used_up",
    "CR404": "checkpoint_mismatch",
    "CR405": "c05",
    "CR402": "dense_out_of_memory",
    "CR406": "block_mask_out_of_memory",
    "CR904": "out_of_memory",
    "CR601": "h200_wrong_device",
    "CR901": "swallowed_future",
    "CR902": "crash_in_compile",
    "CR903": "two_locks",
    "CR905": "value_error",
    "CR906": "killed_in_compile",
}


# Each takes a GPU, or two: their recordings are hand-made, in test_device_rules.py,
# test_cuda_graph_rules.py and, for CR314, test_lock_and_import_rules.py.
HAND_MADE = {"CR204", "CR314", "CR501", "CR502", "CR503", "CR504"}
# What these observe is how the program ended, which is no event.
OF_THE_END = {"CR306", "CR307", "CR320", "CR502", "CR902", "CR903", "CR905", "CR906"}


def shape_of(report):
    """What must not depend on names: codes, roots, chains, threads and counts."""
    findings = [
        (f.code, f.root, f.follows_from, sorted(t.tid for t in f.threads)) for f in report.findings
    ]
    return report.verdict, report.exit_code, findings, report.counts


def test_every_recording_has_an_expectation():
    folders = {path.parent.name for path in RECORDINGS.glob("*/events.jsonl")}
    assert folders == set(EXPECTED)


def test_nothing_lies_beside_a_recording():
    """A report made in a recording's folder would be kept with it, and grow old."""
    parts = re.compile(r"(?:events(?:-\d+)?|steady-\d+-\d+)\.jsonl|(?:run|ended)\.json")
    beside = [path for path in RECORDINGS.glob("*/*") if not parts.fullmatch(path.name)]
    assert [path for path in beside if path.parent.name not in {"programs", "__pycache__"}] == []


@pytest.mark.parametrize("name", EXPECTED)
def test_recording_gives_its_findings(name):
    verdict, roots, codes = EXPECTED[name]
    report = diagnose(RECORDINGS / name)
    assert report.verdict == verdict, report.headline
    assert {f.code for f in report.findings if f.root} == roots
    assert {f.code for f in report.findings} == codes


@pytest.mark.parametrize("code", NEEDED)
def test_without_the_cause_its_recording_fails(code):
    _, roots, codes = EXPECTED[NEEDED[code]]
    fewer = [cause for cause in CAUSES if cause.EXPLANATION.code != code]
    report = diagnose(RECORDINGS / NEEDED[code], causes=fewer)
    found = {f.code for f in report.findings}
    assert ({f.code for f in report.findings if f.root}, found) != (roots, codes)


def test_every_cause_has_a_recording_or_a_rule_test():
    assert {cause.EXPLANATION.code for cause in CAUSES} - set(NEEDED) == HAND_MADE


@pytest.mark.parametrize("name", EXPECTED)
def test_names_header_and_phases_do_not_matter(name, tmp_path):
    generator = random.Random(name)
    for file, events in read(RECORDINGS / name).items():
        write(tmp_path, [scrambled(event, generator) for event in events], name=file)
    if (RECORDINGS / name / "ended.json").exists():
        ended = json.loads((RECORDINGS / name / "ended.json").read_text())
        (tmp_path / "ended.json").write_text(json.dumps({**ended, "command": ["x"]}))
    assert shape_of(diagnose(tmp_path)) == shape_of(diagnose(RECORDINGS / name))


def scrambled(event, generator):
    word = f"{generator.getrandbits(40):x}"
    event = {**event, "thread": word, "phase": word}
    if event["point"] == "header":
        event["data"] = {**event["data"], "argv": [word], "env": {}, "platform": word, "cpus": 77}
    if event["point"] == "thread_start":
        event["data"] = {**event["data"], "name": word}
    return event


@pytest.mark.parametrize("name", EXPECTED)
def test_every_statement_points_at_events_that_exist(name):
    folder = RECORDINGS / name
    seqs = {event["seq"] for events in read(folder).values() for event in events}
    report = diagnose(folder)
    for finding in report.findings:
        assert finding.statements
        for statement in finding.statements:
            assert set(statement.evidence) <= seqs
            observed_in_events = finding.code not in OF_THE_END
            if statement.certainty == "observed" and observed_in_events:
                assert statement.evidence, statement.text


@pytest.mark.parametrize("name", EXPECTED)
def test_a_finding_follows_only_from_findings_and_never_from_itself(name):
    report = diagnose(RECORDINGS / name)
    codes = [finding.code for finding in report.findings]
    seen: set[str] = set()
    for finding in report.findings:
        assert finding.root == (not finding.follows_from)
        assert set(finding.follows_from) <= set(codes) - {finding.code}
        assert set(finding.follows_from) <= seen, "what it follows from comes first"
        seen.add(finding.code)


def test_the_crash_statement_says_what_this_torch_can_do():
    texts = [s.text for s in diagnose(RECORDINGS / "grad_mode").findings[0].statements]
    assert any("hides the FX-tracing flag while dynamo compiles" in text for text in texts)
    texts = [s.text for s in diagnose(RECORDINGS / "grad_mode+t211").findings[0].statements]
    assert any("can raise the FX error" in text and "fixed in 2.14" in text for text in texts)


def test_without_detail_the_thread_state_is_inferred():
    (finding, *_) = diagnose(RECORDINGS / "grad_mode+nodetail").findings
    assert [s.certainty for s in finding.statements] == ["inferred"] * len(finding.statements)
    (finding, *_) = diagnose(RECORDINGS / "grad_mode").findings
    assert finding.statements[0].certainty == "observed"


def test_headline_counts_the_threads_and_names_the_guard():
    headline = diagnose(RECORDINGS / "grad_mode").headline
    assert headline.startswith("All 3 drafter threads recompiled `block` after warm-up")
    assert "warmed with gradients off and is called with them on" in headline
    assert "GLOBAL_STATE grad_mode" in headline
    assert "compiled 3 times, one after another behind dynamo's compile lock" in headline


def test_a_new_shape_with_nobody_else_there_is_a_note():
    report = diagnose(RECORDINGS / "new_shape_alone")
    assert [note.code for note in report.notes] == ["CR201"]


def test_counts_leave_torchs_own_compiles_out():
    report = diagnose(RECORDINGS / "c05")
    assert report.counts.compiles == 1
    assert report.counts.fallbacks == 3
    assert report.counts.threads_with_compiled_calls == 1


def test_the_crash_on_a_gpu_is_told_from_its_root_to_its_error():
    report = diagnose(RECORDINGS / "h200_no_grad")
    assert [(f.code, f.follows_from) for f in report.findings] == [
        ("CR101", ()),
        ("CR303", ("CR101",)),
        ("CR301", ("CR101", "CR303")),
    ]
    assert report.headline.startswith("All 3 drafter threads recompiled `flex_attention`")
    assert "compiled 3 times" in report.headline
    (error,) = report.errors
    assert (error.explained_by, error.torchs_own) == (("CR301",), False)


def test_an_error_that_main_raises_again_in_a_group_is_not_mains_own():
    report = diagnose(RECORDINGS / "block_mask_in_a_group")
    (finding,) = (f for f in report.findings if f.code == "CR310")
    assert [thread.name for thread in finding.threads] == ["drafter-1", "drafter-0"]
    assert [error.explained_by for error in report.errors] == [("CR310",)]


def test_a_compile_that_lost_dynamic_is_noted():
    (note,) = diagnose(RECORDINGS / "h200_no_grad").notes
    assert (
        "assume_static_by_default` at `False` in `MainThread` [0/0], `drafter-0` [0/1]" in note.text
    )
    assert "its default in `drafter-1` [0/2]" in note.text
    assert diagnose(RECORDINGS / "h200_grad").notes == ()


def test_inductors_pool_at_exit_is_no_error_of_the_programs():
    report = diagnose(RECORDINGS / "h200_subproc_pool")
    (error,) = report.errors
    assert (error.thread.name, error.torchs_own) == ("InductorSubproc", True)
    assert (error.explained_by, report.counts.thread_errors) == ((), 0)
    assert [note.code for note in report.notes] == ["CR901"]


def test_autograds_device_thread_is_none_of_the_callers():
    report = diagnose(RECORDINGS / "h200_grad")
    assert report.headline.startswith("Clean: 3 threads beside the main one")
    assert "all with backward" in report.headline
    assert report.counts.threads_with_compiled_calls == 4


def test_a_swallowed_error_stays_out_of_the_headline_that_explains_it():
    report = diagnose(RECORDINGS / "fx_flag_in_compile+t211")
    assert "CR901" in {f.code for f in report.findings}
    assert "swallowed" not in report.headline
    assert "swallowed" in diagnose(RECORDINGS / "swallowed_future").headline


def test_autograds_device_thread_has_its_device_and_those_it_worked_for():
    report = diagnose(RECORDINGS / "h200_autograd")
    (thread,) = (t for t in report.threads if t.role == "autograd")
    assert (thread.thread.name, thread.device) == ("pt_autograd_0", "cuda:0")
    assert [of.name for of in thread.behalf] == ["MainThread", "drafter-0", "drafter-1"]
    assert [t.thread.name for t in report.threads if t.device] == ["pt_autograd_0"]


def test_who_runs_eager_by_choice_is_noted_and_who_has_nothing_to_compile_is_not():
    report = diagnose(RECORDINGS / "own_ways")
    notes = {note.code: note.text for note in report.notes}
    assert set(notes) == {"CR312", "CR318"}
    assert "`evaluates` and `MainThread` ran eager under a stance (`force_eager`)" in notes["CR312"]
    assert "`counted` in thread `counts` ran eager under `_FlopCounterMode`" in notes["CR318"]


def test_a_leaked_stance_is_told_with_both_sides():
    (finding,) = diagnose(RECORDINGS / "stance_leak").findings
    assert [stack.title for stack in finding.stacks] == ["ran eager", "set the stance"]
    assert [thread.name for thread in finding.threads] == ["train", "evaluate"]
    assert finding.statements[0].certainty == "observed"


def test_the_lost_warning_follows_from_the_dense_calls():
    findings = {f.code: f for f in diagnose(RECORDINGS / "c05").findings}
    assert findings["CR405"].follows_from == ("CR401",)
    assert [s.certainty for s in findings["CR405"].statements] == ["observed", "inferred"]


def test_a_mismatch_of_a_recomputation_follows_from_what_made_it_eager():
    findings = {f.code: f for f in diagnose(RECORDINGS / "checkpoint_mismatch").findings}
    assert findings["CR404"].follows_from == ("CR312",)
    assert "recomputation ran eager" in diagnose(RECORDINGS / "checkpoint_mismatch").headline


def test_closures_that_threads_define_themselves_are_told_from_a_stampede():
    """They share code and cache, but one's entry does not fit another: nothing was repeated."""
    (finding,) = diagnose(RECORDINGS / "closure_in_each_thread").findings
    assert "for the guard `scale == 2.5`" in finding.statements[-1].text
    assert "define and compile the function once" in finding.remedy.text
    (cold, _) = diagnose(RECORDINGS / "cold_start").findings
    assert "one thread before the others start" in cold.remedy.text
