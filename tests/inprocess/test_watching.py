"""``harness.watching()`` in the tests' own process."""

import atexit
import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
import torch.nn.attention.flex_attention

import dflash_min.observe
import harness
from dflash_min.errors import UsageError
from harness.child import torch_symbols as symbols
from harness.child.in_process import inside, places
from harness.child.settings import Settings


def codes(run) -> set[str]:
    return {finding.code for finding in run.diagnosis.findings}


def everything() -> dict[str, object]:
    """What is in every place that a probe may touch, by its name."""
    found = {
        name: symbol.find("missing")
        for name, symbol in vars(symbols).items()
        if isinstance(symbol, symbols.Symbol)
    }
    found["EXEC_SKIP"] = str(found["EXEC_SKIP"])
    found |= {
        f"threading.{name}": vars(owner)[name]
        for owner, name in (
            (threading, "excepthook"),
            (threading, "_make_invoke_excepthook"),
            (threading.Thread, "start"),
            (threading.Thread, "_delete"),
            (threading.Thread, "run"),
        )
    }
    found |= {f"Future.{name}": value for name, value in vars(Future).items() if callable(value)}
    for name in ("FX_TRACING", "READ_IS_COMPILING"):
        function = getattr(symbols, name).get()
        found[f"{name} code"] = function.__code__
        found[f"{name} defaults"] = function.__defaults__
    return found | {
        "sys.excepthook": sys.excepthook,
        "sys.exit": sys.exit,
        "os._exit": os._exit,
        "meta_path": list(sys.meta_path),
        "handlers": list(logging.getLogger(symbols.TRACE_LOGGER).handlers),
        "level": logging.getLogger(symbols.TRACE_LOGGER).level,
        "guard hook": places.guard_hook(),
        "exit handlers": atexit._ncallbacks(),
        "observer": dflash_min.observe._observer,
        "faulthandler": threading.stack_size(),
    }


def test_everything_is_back_in_its_place_afterwards(make, in_threads):
    compiled, x = make(), torch.ones(3)
    compiled(x)
    before = everything()
    with harness.watching():
        during = everything()
        in_threads(compiled, x)
    after = everything()
    assert {name for name in before if before[name] is not after[name]} - {
        "meta_path",
        "handlers",
        "exit handlers",
        "level",
        "EXEC_SKIP",
    } == set()
    assert before == after
    changed = {name for name in before if during[name] is not before[name]}
    assert changed >= {
        "COMPILE",
        "COMPILE_LOCK",
        "FX_TRACE",
        "FX_TRACING code",
        "INSTALL_CALLBACKS",
        "MATH_ATTENTION",
        "DENSE_TO_ORDERED",
        "PUSH_MODE",
        "REPLAY_GRAPH",
        "RUN_BACKWARD",
        "RUN_BACKWARD_BY_NAME",
        "SET_STANCE",
        "SET_STANCE_BY_NAME",
        "threading.start",
        "threading._delete",
        "threading._make_invoke_excepthook",
        "Future.result",
        "Future.set_exception",
        "sys.excepthook",
        "observer",
    }
    assert during["handlers"] != before["handlers"]
    # Replaced, these would be traced, and what was compiled earlier would not know of it.
    untouched = {"FX_TRACING", "READ_IS_COMPILING", "READ_IS_COMPILING code", "THREAD_STORAGE"}
    assert not changed & untouched


def test_a_function_compiled_before_shows_with_its_entries(make, in_threads):
    compiled, x = make(), torch.ones(3, requires_grad=True)
    with torch.no_grad():
        compiled(x)
    with harness.watching() as run:
        in_threads(compiled, x)
    assert run.verdict == "found"
    assert "CR101" in codes(run)
    assert "gradients off" in run.diagnosis.headline
    name = compiled._torchdynamo_orig_callable.__name__
    (unseen,) = [gap for gap in run.diagnosis.not_watched if gap.name == "earlier compiles"]
    assert f"`{name}`" in unseen.reason
    assert not unseen.decisive
    (cache,) = [cache for cache in run.diagnosis.caches if cache.code.name == name]
    assert cache.entries[0].before
    assert cache.entries[0].made_by is None
    assert cache.entries[0].context.startswith("grad off")
    assert "x [3] float32" in cache.entries[0].accepts
    assert run.diagnosis.counts.compiles == len(cache.entries) - 1
    assert not any(
        statement.certainty == "observed" and "before any other thread" in statement.text
        for finding in run.diagnosis.findings
        for statement in finding.statements
    )


def test_what_is_warmed_up_inside_is_clean(make, in_threads):
    compiled, x = make(backend="aot_eager"), torch.ones(3, requires_grad=True)
    with harness.watching() as run:
        compiled(x).sum().backward()
        in_threads(compiled, x)
    assert run.verdict == "clean", run.report()
    assert run.diagnosis.counts.compiles == 1
    assert "left after" in run.report()
    assert run._repr_markdown_().startswith("# ")


def test_no_graph_breaks_where_compiled_code_asks_whether_it_is_compiled(make):
    body = "x + 1 if torch.compiler.is_compiling() else x + 2"
    before = make(body, fullgraph=True)
    assert before(torch.zeros(1)).item() == 1
    with harness.watching() as run:
        assert before(torch.zeros(1)).item() == 1
        assert make(body, fullgraph=True)(torch.zeros(1)).item() == 1
        assert not torch.compiler.is_compiling()
        assert make(body, fullgraph=True)(torch.zeros(2)).tolist() == [1, 1]
    assert before(torch.zeros(1)).item() == 1
    assert run.verdict == "clean", run.report()
    assert run.diagnosis.counts.compiles == 2


def test_watches_nest_and_each_has_its_own_beginning(make, in_threads):
    first, second, x = make(), make(), torch.ones(3, requires_grad=True)
    with harness.watching() as outer:
        with torch.no_grad():
            first(x)
            second(x)
        in_threads(first, x, threads=1)  # two compile once or twice, as it comes
        with harness.watching() as inner:
            in_threads(second, x)
        places_inside = everything()["COMPILE"]
        second(x)
    assert everything()["COMPILE"] is not places_inside
    names = [f._torchdynamo_orig_callable.__name__ for f in (first, second)]
    assert "CR101" in codes(inner) & codes(outer)
    assert names[1] in inner.diagnosis.headline
    assert names[0] not in inner.diagnosis.headline
    assert names[0] in outer.diagnosis.headline
    assert outer.diagnosis.counts.compiles == inner.diagnosis.counts.compiles + 3
    assert not [gap for gap in inner.diagnosis.not_watched if gap.decisive]


def test_watches_may_overlap(make):
    before = everything()
    first, second = harness.watching(), harness.watching()
    compiled = [make() for _ in range(3)]
    first.__enter__()
    compiled[0](torch.ones(2))
    second.__enter__()
    compiled[1](torch.ones(2))
    first.__exit__(None, None, None)
    compiled[2](torch.ones(2))
    second.__exit__(None, None, None)
    assert first.diagnosis.counts.compiles == second.diagnosis.counts.compiles == 2
    assert (first.verdict, second.verdict) == ("clean", "clean"), second.report()
    assert everything() == before


def test_a_program_can_say_when_its_warmup_is_over(make):
    def shapes(compiled) -> None:
        compiled(torch.ones(3))
        harness.warmup_done()
        compiled(torch.ones(4))

    with harness.watching() as run:
        shapes(make())
    assert codes(run) == {"CR201"}, run.report()
    assert "had said before that its warm-up was over" in run.report()
    assert run.diagnosis.counts.compiles_after_warmup == 1
    with harness.watching() as run:
        compiled = make()
        compiled(torch.ones(3))
        compiled(torch.ones(4))
    assert run.verdict == "clean"
    assert run.diagnosis.counts.compiles_after_warmup == 0


def test_the_thread_that_warmed_up_is_told_too_once_its_warmup_is_over(make):
    compiled, x = make(), torch.ones(3, requires_grad=True)
    with harness.watching() as run:
        with torch.no_grad():
            compiled(x)
        harness.warmup_done()
        compiled(x)
    assert codes(run) == {"CR101"}, run.report()


def test_an_exception_goes_on_its_way_and_is_in_the_report():
    run = harness.watching()
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    (error,) = run.diagnosis.errors
    assert error.type == "ZeroDivisionError"
    assert run.diagnosis.ended.block
    assert "left by an exception" in run.report()


def test_nothing_is_kept_without_a_folder_and_all_with_one(make, tmp_path):
    with harness.watching() as run:
        place = run._place
        assert (place / "events.jsonl").exists()
        with pytest.raises(RuntimeError, match="has not ended yet"):
            _ = run.verdict
    assert not place.exists()
    assert run.folder is None
    assert run.verdict == "nothing ran"
    with pytest.raises(RuntimeError, match="has been used"):
        run.__enter__()
    with harness.watching(tmp_path) as run:
        make()(torch.ones(1))
    assert run.folder.parent == tmp_path
    written = {path.name for path in run.folder.iterdir()}
    assert written >= {"events.jsonl", "report.json", "report.md", "report.html", "trace.json"}
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="it is a file"), harness.watching(tmp_path / "file"):
        pytest.fail("entered")


def test_a_forked_process_is_not_watched(make):
    before = everything()
    with harness.watching() as run:
        pid = os.fork()
        if pid == 0:
            told = False
            try:
                told = inside._session is None and everything() == before
            finally:  # no second pytest goes on from here
                os._exit(0 if told else 1)
        assert os.waitpid(pid, 0) == (pid, 0)
        make()(torch.ones(1))
    assert run.verdict == "clean", run.report()
    assert run.diagnosis.counts.compiles == 1


def test_an_error_of_an_earlier_cell_is_not_the_blocks(monkeypatch):
    try:
        exec("raise KeyError('old')", {"__name__": "__main__"})
    except KeyError as old:
        monkeypatch.setattr(sys, "last_value", old, raising=False)
    with harness.watching() as run:
        pass
    assert run.diagnosis.errors == ()


def test_somebody_elses_replacement_stays_and_is_told():
    lock = symbols.COMPILE_LOCK.get()
    run = harness.watching()
    run.__enter__()
    theirs = object()
    symbols.COMPILE_LOCK.replace(theirs)
    try:
        with pytest.warns(RuntimeWarning, match="compile_lock was replaced by somebody else"):
            run.__exit__(None, None, None)
        assert symbols.COMPILE_LOCK.get() is theirs
    finally:  # every later compile of this process takes it
        symbols.COMPILE_LOCK.replace(lock)


def test_under_the_watch_from_outside_both_see_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, torch, harness\n"
        "f = torch.compile(lambda x: (x * 2).sin(), backend='eager')\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "with torch.no_grad():\n"
        "    f(x)\n"
        "with harness.watching() as run:\n"
        "    thread = threading.Thread(target=f, args=(x,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "print(run.verdict, *[f.code for f in run.diagnosis.findings])\n"
        "print([g.reason for g in run.diagnosis.not_watched if g.decisive])\n"
    )
    watch = [sys.executable, "-m", "harness.watch", "--out", str(tmp_path), "--json", "--"]
    done = subprocess.run([*watch, str(program)], capture_output=True, text=True, check=False)
    assert "found CR101\n[]\n" in done.stdout, done.stdout[:2000] + done.stderr
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert [finding["code"] for finding in report["findings"]] == ["CR101"]
    assert not [gap for gap in report["not_watched"] if gap["decisive"]]


def test_a_line_that_comes_after_the_end_of_a_watch_is_not_written(tmp_path):
    copy = inside.Copy(Settings(folder=str(tmp_path), harness=""))
    copy.write(b'{"seq": 7}\n')
    copy.close()
    copy.write(b'{"seq": 8}\n')
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b'{"seq": 1}\n']


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "temporary"])
@pytest.mark.parametrize(
    "what",
    [
        "harness.inprocess.write_run",
        "harness.child.boot.header",
        "harness.child.in_process.inside.record_entries",
    ],
)
def test_a_watch_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch, what, kept):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = everything()
    with monkeypatch.context() as patched:
        patched.setattr(what, full)
        with (
            pytest.raises(OSError, match="No space left"),
            harness.watching(tmp_path if kept else None),
        ):
            pytest.fail("it began")
    assert list(tmp_path.iterdir()) == []
    assert everything() == before
    with harness.watching() as run:
        pass
    assert run.verdict == "nothing ran"


def test_a_watch_inside_another_that_cannot_begin_leaves_the_other_alone(
    tmp_path, monkeypatch, make, in_threads
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    compiled, x = make(), torch.ones(3)
    with torch.no_grad():
        compiled(x)
    with harness.watching() as run:
        with monkeypatch.context() as patched:
            patched.setattr("harness.child.in_process.inside.record_entries", full)
            with pytest.raises(OSError, match="No space left"), harness.watching(tmp_path):
                pytest.fail("it began")
        in_threads(compiled, x.clone().requires_grad_())
    assert codes(run) & {"CR101", "CR203"}


def test_entries_of_another_backend_are_told_apart(tmp_path):
    def f(x):
        return x.cos()

    x = torch.ones(3)
    with harness.watching(tmp_path) as run:
        one, other = (torch.compile(f, backend=name) for name in ("eager", "aot_eager"))
        one(x)
        other(x)
        one(x.double())
    events = (run.folder / "events.jsonl").read_text().splitlines()
    ends = [
        (event["compile_id"].partition("/")[2], event["data"]["other_backends"])
        for event in map(json.loads, events)
        if event["point"] == "dynamo_compile" and "other_backends" in event["data"]
    ]
    assert [(n, [i.partition("/")[2] for i in ids]) for n, ids in ends] == [
        ("0", []),
        ("1", ["0"]),
        ("2", ["1"]),
    ]


def test_what_a_thread_says_after_the_end_is_not_recorded():
    lines: list[bytes] = []
    recorder = inside.InsideRecorder()
    recorder.copies.copies = (SimpleNamespace(write=lines.append),)
    step = '{"step": 1, "tokens": 2, "seconds": 0.5}'
    assert recorder.emit_steady("step", step) > 0
    recorder.closed = True
    assert recorder.emit_steady("step", step) == recorder.emit("phase", {"name": "x"}) == 0
    assert len(lines) == 1
