"""What the renderers derive from a report: chains, folded stacks, differences, counts, links."""

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.diagnosis.build import diagnose
from harness.diagnosis.memory_report import FailedRequest, Memory
from harness.diagnosis.report import (
    AfterWarmup,
    Counts,
    Environment,
    Finding,
    Remedy,
    SourceLine,
    ThreadRef,
    ThreadReport,
)
from harness.events.ended import Ended
from harness.events.values import Frame
from harness.render import WRITERS, chain, facts, memory, text, write_all
from harness.render.lanes import PALETTE, lanes
from harness.render.lines import cited, locate
from harness.render.stacks import fold
from harness.render.terminal import print_report
from harness.render.text import natural
from harness.render.view import View

from .samples import (
    CLEAN,
    DRAFTERS,
    ENDED,
    FOUND,
    MAIN,
    MISSED,
    PID,
    ROOT,
    SAMPLES,
    STAMPEDE,
    THREADS,
)

RECORDINGS = Path(__file__).parents[1] / "recordings"

ATTENTION = "/home/ada/dflash/dflash_min/attention.py"
MODEL = "/home/ada/dflash/dflash_min/model.py"
SOURCE = (
    SourceLine(ATTENTION, 88, "return self.compiled(q)"),
    SourceLine(MODEL, 141, "if a || b: <x>"),
)


def finding(code, *follows_from):
    return Finding(
        code=code,
        title=code.lower(),
        root=not follows_from,
        pid=PID,
        statements=(),
        remedy=Remedy(""),
        follows_from=follows_from,
    )


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([finding("A")], [("A",)]),
        # The longer way is the one to show: C follows from A by way of B.
        ([finding("A"), finding("C", "A", "B"), finding("B", "A")], [("A", "B", "C")]),
        ([finding("A"), finding("B", "A"), finding("C", "A")], [("A", "B"), ("A", "C")]),
        ([finding("A"), finding("B"), finding("C", "A", "B")], [("A", "C"), ("B", "C")]),
        ([finding("A"), finding("B", "X")], [("A",), ("B",)]),
        ([finding("A", "B"), finding("B", "A")], [("A",), ("B",)]),
        ([finding("A"), finding("A"), finding("B", "A", "B")], [("A",), ("B",)]),
    ],
)
def test_paths(findings, expected):
    assert chain.paths(findings) == expected


@given(
    st.lists(st.tuples(st.sampled_from("ABCDE"), st.sets(st.sampled_from("ABCDEX"))), max_size=6)
)
def test_every_code_is_on_a_path(drawn):
    findings = [finding(code, *sorted(before)) for code, before in drawn]
    assert {code for way in chain.paths(findings) for code in way} == {f.code for f in findings}


def test_a_stack_begins_with_the_programs_own_frame_and_names_the_call_it_was_in():
    folded = fold(MISSED)
    assert folded.inside.text == "compile_wrapper"
    assert folded.inside.place == "torch/_dynamo/eval_frame.py:1116"
    assert folded.inside.note == "(2 torch frames)"
    assert [row.text for row in folded.rows] == [
        "__call__",
        "forward",
        "3 torch frames",
        "forward",
        "train_step",
        "_drafter_loop",
        "2 library frames",
    ]


def test_a_stack_without_a_frame_of_the_programs_keeps_its_innermost():
    frames = tuple(frame for frame in MISSED if not frame.user)
    folded = fold(frames)
    assert folded.inside is None
    assert [row.text for row in folded.rows][-1] == "4 torch and library frames"
    assert len(folded.rows) == 4


frames = st.builds(
    Frame,
    st.sampled_from(["/a/b.py", "/x/site-packages/torch/y.py", "/usr/lib/python3.11/z.py"]),
    st.integers(1, 99),
    st.sampled_from("fgh"),
    st.booleans(),
)


@given(st.lists(frames, max_size=12))
def test_folding_loses_no_frame(stack):
    folded = fold(stack)
    inside = folded.inside.folded if folded.inside else ()
    shown = [*inside, *(frame for row in folded.rows for frame in row.folded or (row,))]
    assert [getattr(f, "function", None) or f.text for f in shown] == [f.function for f in stack]


def test_differences_name_who_has_what():
    context, config = View.of(FOUND).differences
    assert context == (
        "Contexts differ at the first compiled call. MainThread: `grad off`; "
        "drafter-0, drafter-1 and drafter-2: `grad on`"
    )
    assert config == (
        "`torch._dynamo.config.recompile_limit` differs: its default in MainThread, drafter-1 and "
        "drafter-2; `64` in drafter-0"
    )
    assert View.of(SAMPLES["clean"]).differences == []


def test_a_context_that_lacks_a_part_differs_too():
    changed = (
        msgspec.structs.replace(THREADS[0], first_context="grad on, autocast cpu bfloat16"),
        msgspec.structs.replace(THREADS[2], first_context="grad on"),
    )
    (said,) = View.of(msgspec.structs.replace(FOUND, threads=changed)).differences
    assert said.endswith(
        "MainThread: `autocast cpu bfloat16`; drafter-1: only what all have in common"
    )


def test_names_that_two_threads_share_come_with_their_ids():
    twins = tuple(ThreadReport(ThreadRef(tid, "worker", PID), "workload") for tid in (1, 2))
    view = View.of(msgspec.structs.replace(FOUND, threads=twins))
    assert view.names(t.thread for t in twins) == "worker (tid 1) and worker (tid 2)"
    ranks = msgspec.structs.replace(FOUND, environment=Environment(processes=(PID, 7)))
    assert View.of(ranks).name(MAIN) == f"MainThread (pid {PID})"


def test_counts_say_of_how_many_and_when_a_number_is_a_bound():
    threads = tuple(ThreadReport(ThreadRef(tid, "", PID), "workload") for tid in range(4))
    report = msgspec.structs.replace(FOUND, counts=Counts(1, 1, 1, 0, 16, 2), threads=threads)
    said = [f"{c.number} {c.what}" for c in facts.counts(report)]
    assert said == [
        "1 compile after warm-up",
        "1 compile in all",
        "1 thread of 4 seen called compiled code",
        "0 threads of 4 seen called backward",
        "16 calls at least of dense attention outside a compiled frame",
        "2 errors ended a thread, a future's call or the program",
    ]


def test_compiles_of_a_cold_start_are_not_said_to_come_after_a_warm_up():
    cold, warm = (diagnose(RECORDINGS / name) for name in ("cold_start", "grad_mode"))

    def said(report):
        return facts.counts(report)[0].what

    assert said(cold) == "compiles without a warm-up"
    assert said(warm) == "compiles after warm-up"
    elsewhere = (msgspec.structs.replace(code, pid=1) for code in warm.coverage)
    both = msgspec.structs.replace(cold, coverage=(*cold.coverage, *elsewhere))
    assert said(both) == "compiles after or without a warm-up"
    # Where the program said that its warm-up was over, that counts.
    marked = msgspec.structs.replace(cold, after_warmup=AfterWarmup(compiles=1))
    assert said(marked) == "compiles after warm-up"


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (None, "How the process ended is not known: there is no record of it that can be read."),
        (ENDED, "The process ended by itself with exit code 1 after 9.4 s."),
        (
            Ended(exit_code=None, signal=11, signal_name="SIGSEGV", wall_s=2),
            "The process was ended by signal 11 (SIGSEGV) after 2.0 s.",
        ),
        (
            SAMPLES["incomplete"].ended,
            (
                "The time limit of 30 s was reached. It was idle then: next to no processor time "
                "and no new events. "
                "The harness then ended it with signal 9 (SIGKILL), after 30.2 s."
            ),
        ),
        (
            Ended(exit_code=None, signal=15, killed_from_outside=True),
            (
                "It was killed from outside: neither by itself nor by the harness. "
                "The process was ended by signal 15 after 0.0 s."
            ),
        ),
    ],
)
def test_ending(ended, expected):
    assert " ".join(facts.ending(ended)) == expected


def event(seq, pid=PID):
    return json.dumps({"point": "guard_miss", "t_ns": seq, "seq": seq, "pid": pid, "data": {}})


def test_evidence_is_found_by_line_in_every_file_and_damaged_lines_are_passed_over(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        f"{event(1)}\n{event(41)}\nnot json\n{event(42)}\n\n{event(50)}"[:-5], encoding="utf-8"
    )
    (tmp_path / "steady-1-000001.jsonl").write_text(f"{event(44)}\n", encoding="utf-8")
    lines = locate(FOUND, tmp_path)
    labels = [label for label, _ in lines.labelled(PID, (44, 41, 42, 42, 50))]
    assert labels == ["events.jsonl:2", "4", "steady-1-000001.jsonl:1", "#50"]
    assert [line.seq for line in lines] == [41, 42, 44]
    # Another process's event of the same number is another event.
    assert lines.cite(7, (41,))[0].file == ""


def test_all_evidence_of_a_report_is_looked_up():
    seqs = {seq for pid, seq in cited(FOUND) if pid == PID}
    assert {20, 21, 29, 40, 41, 42, 43, 44, 45, 46, 48, 50, 52} <= seqs


def test_files_link_to_event_lines_and_replace_earlier_ones(tmp_path):
    (tmp_path / "events.jsonl").write_text(f"{event(40)}\n{event(41)}\n", encoding="utf-8")
    (tmp_path / "report.md").write_text("old", encoding="utf-8")
    paths = write_all(FOUND, tmp_path)
    assert {kind: path.name for kind, path in paths.items()} == {
        "json": "report.json",
        "md": "report.md",
        "html": "report.html",
    }
    assert "[events.jsonl:2](<./events.jsonl#L2>)" in paths["md"].read_text(encoding="utf-8")
    page = paths["html"].read_text(encoding="utf-8")
    assert f'href="#event-{PID}-41">events.jsonl:2</a>' in page
    assert f'id="event-{PID}-41"' in page
    assert {path.name for path in tmp_path.iterdir()} == {
        *("events.jsonl", "report.md", "report.json", "report.html", "trace.json")
    }


def test_every_inner_link_of_the_page_has_its_place(tmp_path):
    (tmp_path / "events.jsonl").write_text("\n".join(map(event, range(60))), encoding="utf-8")
    page = write_all(FOUND, tmp_path)["html"].read_text(encoding="utf-8")
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets
    assert targets <= set(re.findall(r'id="([^"]+)"', page))


def test_no_file_name_becomes_an_address(tmp_path):
    (tmp_path / "events-javascript:alert(1) [x](y).jsonl").write_text(event(41), encoding="utf-8")
    paths = write_all(FOUND, tmp_path)
    assert 'href="./events-javascript%3Aalert%281%29' in paths["html"].read_text(encoding="utf-8")
    assert "(<./events-javascript%3Aalert%281%29" in paths["md"].read_text(encoding="utf-8")


def printed(report, **options):
    file = io.StringIO()
    print_report(report, Console(file=file, **options))
    return file.getvalue()


def test_the_last_line_is_the_command_unfolded():
    long = msgspec.structs.replace(FOUND, replay="python -m harness.watch -- " + "x" * 200)
    assert printed(long, width=60).endswith(f"\n{long.replay}\n")


def test_of_several_roots_the_first_ones_stacks_are_shown():
    """Another root has more stacks, and another one's chain ends in an error."""
    stack = ROOT.stacks[0]
    first = msgspec.structs.replace(finding("CR101"), stacks=(stack,))
    other = msgspec.structs.replace(finding("CR202"), stacks=(stack, stack))
    after = msgspec.structs.replace(finding("CR301", "CR202"), stacks=(stack, stack))
    errors = tuple(
        msgspec.structs.replace(error, explained_by=("CR301",)) for error in FOUND.errors
    )
    report = msgspec.structs.replace(FOUND, findings=(first, other, after), errors=errors)
    assert "Stacks of CR101," in printed(report, width=80)
    bare = msgspec.structs.replace(first, stacks=())
    report = msgspec.structs.replace(report, findings=(bare, other, after))
    assert "Stacks of CR301," in printed(report, width=80)
    own = msgspec.structs.replace(after, follows_from=("CR101",))
    report = msgspec.structs.replace(report, findings=(first, other, own))
    assert "Stacks of CR301," in printed(report, width=80)


@pytest.mark.parametrize("written", [True, False])
def test_a_report_that_could_not_be_written_is_not_pointed_to(tmp_path, written):
    file = io.StringIO()
    print_report(FOUND, Console(file=file, width=300), tmp_path, written=written)
    output = file.getvalue()
    assert (f"Full report: {tmp_path / 'report.html'}" in output) == written
    assert ("could not be written" in output) != written
    assert str(tmp_path) in output


@pytest.mark.parametrize(("number", "named"), [(7, 7), (8, 6), (255, 6)])
def test_of_hundreds_of_threads_a_terminal_names_a_few_and_the_files_all(number, named):
    threads = [ThreadRef(tid=5000 + n, name=f"drafter-{n}", pid=PID) for n in range(number)]
    shown = View.of(FOUND, most_names=7).names(threads)
    assert shown.count("drafter-") == named
    assert shown.endswith(f"{number - named} more" if number > named else "drafter-6")
    assert View.of(FOUND).names(threads).count("drafter-") == number
    errors = tuple(msgspec.structs.replace(FOUND.errors[0], thread=thread) for thread in threads)
    output = printed(msgspec.structs.replace(FOUND, errors=errors), width=200)
    (line,) = (line for line in output.splitlines() if line.lstrip().startswith("drafter-0, "))
    assert line.count("drafter-") == named
    assert (f"and {number - named} more" in line) == (number > named)


def test_what_is_left_out_is_said():
    many = tuple(
        msgspec.structs.replace(error, message=f"{number} {'word ' * 300}")
        for number, error in enumerate(FOUND.errors * 5)
    )
    output = printed(msgspec.structs.replace(FOUND, errors=many), width=80)
    assert "Errors of threads (10)" in output
    assert "(4 more errors in report.md)" in output
    assert " ".join(["more", "characters", "in", "report.md"]) in " ".join(output.split())


def test_colours_are_for_terminals_and_can_be_declined(monkeypatch):
    assert "\x1b[" in printed(FOUND, width=80, force_terminal=True)
    assert "▸" in printed(FOUND, width=80, force_terminal=True)
    assert "\x1b[" not in printed(FOUND, width=80)
    assert printed(FOUND, width=80).isascii()
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = printed(FOUND, width=80, force_terminal=True)
    assert not [code for code in coloured.split("\x1b[")[1:] if code[0] in "34"]


def test_shorten_leaves_what_is_hardly_too_long():
    assert text.shorten("a" * 30, 20, "report.md") == "a" * 30
    short = text.shorten("a" * 300, 20, "report.md")
    assert short == "a" * 20 + " ... (280 more characters in report.md)"


def test_lanes_put_each_step_where_it_was():
    picture = lanes(THREADS)
    assert (picture.start_s, round(picture.end_s, 3)) == (0.9, 4.12)
    main = picture.lanes[0]
    assert main.thread.thread == MAIN
    widest = main.bars[0]
    assert widest.left == 0
    assert widest.width == pytest.approx(100 * 2.1 / 3.22)
    assert max(colour for _, colour in picture.legend) <= PALETTE
    assert lanes(()) is None


def test_a_finding_that_follows_is_no_root():
    view = View.of(FOUND)
    assert view.standing(STAMPEDE) == "follows from CR101"
    assert view.roots == ["CR101"]
    assert [f.code for f in view.chains[0]] == ["CR101", "CR303", "CR301"]
    assert view.created(DRAFTERS[0]) == "created by MainThread in start, dflash_min/pipeline.py:76"


def test_names_are_listed_as_people_count():
    threads = [ThreadRef(n, f"drafter-{n}", PID) for n in (10, 2, 1, 2)]
    assert View(FOUND).names(threads) == "drafter-1, drafter-2 and drafter-10"
    assert sorted(["b1", "a10", "a2", "", "a", "10", "9"], key=natural) == [
        *("", "9", "10", "a", "a2", "a10", "b1")
    ]


def test_functions_that_some_thread_missed_come_first():
    (covered,) = CLEAN.coverage
    report = msgspec.structs.replace(FOUND, coverage=(covered, *FOUND.coverage, covered))
    assert View(report).covered == [*FOUND.coverage, covered, covered]


@pytest.mark.parametrize("width", [40, 52, 80, 133])
@pytest.mark.parametrize("report", [FOUND, CLEAN], ids=["found", "clean"])
def test_no_line_is_wider_than_the_terminal(width, report):
    report = msgspec.structs.replace(report, source=SOURCE)
    said = printed(report, width=width)
    snippets = {line for f in report.findings for line in f.remedy.snippet.splitlines()}
    pasted = {report.replay, *snippets}  # on lines of their own, to be pasted
    wide = [line for line in said.splitlines() if len(line) > width]
    assert [line for line in wide if line.strip() not in {each.strip() for each in pasted}] == []


def test_source_lines_stand_under_the_frames_that_they_belong_to():
    view = View(msgspec.structs.replace(FOUND, source=SOURCE))
    markdown = WRITERS["md"](view)
    assert "`~/dflash/dflash_min/attention.py:88` `__call__`<br>`return self.compiled(q)`" in (
        markdown.replace("/home/ada", "~")
    )
    assert "`forward`: `if a || b: <x>`" in markdown
    page = WRITERS["html"](view)
    assert '<code class="source">if a || b: &lt;x&gt;</code>' in page
    assert page.count('class="source"') > 4
    one = msgspec.structs.replace(
        FOUND, findings=(msgspec.structs.replace(ROOT, stacks=ROOT.stacks[:1]),), source=SOURCE
    )
    said = printed(one, width=80).splitlines()
    at = said.index("  dflash_min/attention.py:88 __call__")
    assert said[at + 1] == "      return self.compiled(q)"


def test_failed_requests_of_a_loop_are_counted_once():
    failed = [FailedRequest(thread=MAIN, device="cpu", count=count) for count in (1, 2, 3)]
    other = FailedRequest(thread=DRAFTERS[0], device="cpu")
    of = Memory(pid=PID, requests=(*failed, other))
    assert memory.lines(View(msgspec.structs.replace(CLEAN, memory=(of,)))) == [
        "4 requests for memory failed"
    ]


def test_a_cache_says_what_it_does_not_list():
    (cache,) = FOUND.caches
    assert "not listed" not in WRITERS["md"](View(FOUND)) + WRITERS["html"](View(FOUND))
    more = msgspec.structs.replace(FOUND, caches=(msgspec.structs.replace(cache, left_out=1200),))
    said = "1,200 more entries and rejections not listed; see the recording."
    assert said in WRITERS["md"](View(more))
    assert said in WRITERS["html"](View(more))
