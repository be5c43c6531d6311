"""Scripts that show a race by themselves, made from recorded runs under the named plans."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness.diagnosis.report import Finding, Remedy, Statement
from harness.events.files import EVENTS
from harness.schedule.emit import Emitted, run_script
from harness.schedule.named import NAMED
from harness.schedule.plan import Delays, Plan, parse_plan
from harness.schedule.script import MOST_LINES, NoScript, Parts, script_for
from harness.timeline.recording import Recording

FORKED = """
import os, sys
import torch._dynamo, torch._inductor.compile_fx, torch.fx
from torch.nn.attention import flex_attention

for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(compile(open(path).read(), path, "exec"), globals())  # dynamo asks for __main__
        sys.exit()
    print(path, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
CLEAN = """
import os, sys
assert not [name for name in os.environ if name.startswith("PYTHON")]
assert sys.flags.isolated and os.listdir() == []
print("reproduced")
sys.exit(1)
"""
PARTS = Parts(torch="2.13.0", python="3.11.7")
CODES = {
    "fx-flag": "CR301",
    "fx-flag-sticky": "CR302",
    "is-compiling": "CR304",
    "stampede": "CR303",
    "fx-annotation": "CR310",
    "fx-patcher": "CR308",
}
#: What a script shows on a torch that has its defect, on the fewest versions that tests run on.
SINCE = {"CR304": (2, 13), "CR310": (2, 13)}
UNTIL = {"CR301": (2, 13), "CR302": (2, 13)}


def finding(code, *evidence, root=True):
    return Finding(
        code=code,
        title=code,
        root=root,
        pid=7,
        statements=(Statement(text="it happened", certainty="observed", evidence=evidence),),
        remedy=Remedy(text="none"),
        evidence=evidence,
    )


@pytest.fixture
def nothing(tmp_path):
    (tmp_path / EVENTS).write_text("")
    return Recording(tmp_path)


def has_defect(code: str) -> bool:
    import torch

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return SINCE.get(code, version) <= version <= UNTIL.get(code, version)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A script for each named plan."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / EVENTS).write_text("")
    made = {}
    for name in NAMED:
        script = script_for([finding(CODES[name])], NAMED[name], Recording(folder), PARTS)
        path = folder / f"{name}.py"
        path.write_text(script.text)
        made[name] = path, script
    return made


@pytest.fixture(scope="module")
def forked(scripts):
    """Each script's last line and exit code, from processes forked where torch is loaded."""
    paths = [str(path) for path, _ in scripts.values()]
    command = [sys.executable, "-I", "-c", FORKED, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    said = dict.fromkeys(scripts, "")
    words: list[str] = []
    for line in done.stdout.splitlines():
        path, _, code = line.rpartition(" ")
        if path in paths:
            said[Path(path).stem] = f"{words[-1] if words else ''} {code}"
            words.clear()
        else:
            words.append(line)
    return said, done.stderr


@pytest.mark.parametrize("name", NAMED)
def test_each_named_plan_has_a_script_of_torch_alone_that_reproduces(name, scripts, forked) -> None:
    _, script = scripts[name]
    assert script.code == CODES[name]
    lines = script.text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 100
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(script.text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
    }
    assert imported <= {"torch", "threading", "sys", "time"}
    said, stderr = forked
    expected = "reproduced 1" if has_defect(script.code) else "not reproduced 0"
    assert said[name] == expected, stderr


@pytest.mark.slow
def test_a_script_reproduces_from_a_fresh_interpreter(scripts) -> None:
    path, script = scripts["stampede"]
    assert run_script(path, sys.executable) is has_defect(script.code)


def test_the_trace_of_a_compile_is_taken_from_the_evidence(tmp_path) -> None:
    (tmp_path / EVENTS).write_text(
        '{"seq":1,"t_ns":1,"pid":7,"tid":8,"thread":"t","point":"dynamo_compile","edge":"enter","data":{"code":'
        '{"id":1,"name":"f","file":"p.py","line":1},"inputs":[{"name":"x","shape":[4,6],"dtype":"float32",'
        '"device":"cpu"}]}}\n'
        '{"seq":2,"t_ns":2,"pid":7,"tid":8,"thread":"t","point":"fx_trace","edge":"enter","data":{"tracer":'
        '"PythonKeyTracer","in_compile":true}}\n'
    )
    recording = Recording(tmp_path)
    parts = Parts(torch="2.11.0", python="3.11.7", backend="inductor", dynamic=False)
    text = script_for([finding("CR301", 1, 2)], NAMED["fx-flag"], recording, parts).text
    assert 'torch.compile(lambda x: held(x.exp()), backend="inductor", dynamic=False)(x)' in text
    assert "x = torch.randn(4, 6)" in text
    assert "symbolic_trace" not in text
    other = script_for([finding("CR301", 99)], NAMED["fx-flag"], recording, parts).text
    assert "torch.fx.symbolic_trace(traced)" in other
    assert "x = torch.randn(8)" in other


def test_a_stampede_of_three_has_three_threads(nothing) -> None:
    plan = parse_plan(["A:lock_wait:enter", "B:lock_wait:enter", "C:dynamo_compile:exit"])
    text = script_for([finding("CR208"), finding("CR303", root=False)], plan, nothing, PARTS).text
    assert "for body in [call] * 3]" in text


def test_traces_that_cross_are_the_patchers_race_whatever_is_named_first(nothing) -> None:
    found = [finding("CR302"), finding("CR308")]
    assert script_for(found, NAMED["fx-patcher"], nothing, PARTS).code == "CR308"
    assert script_for(found, NAMED["fx-flag-sticky"], nothing, PARTS).code == "CR302"


def test_what_a_schedule_is_about_goes_before_what_else_came_of_it(nothing) -> None:
    found = [finding("CR101"), finding("CR301"), finding("CR303", root=False)]
    assert script_for(found, NAMED["stampede"], nothing, PARTS).code == "CR303"
    assert script_for(found, NAMED["fx-flag"], nothing, PARTS).code == "CR301"


@pytest.mark.parametrize(
    ("codes", "schedule", "why"),
    [
        ([], NAMED["stampede"], "nothing was found"),
        (["CR303"], Plan(), "only a schedule of holds"),
        (["CR303"], Delays(1), "only a schedule of holds"),
        (["CR101", "CR207"], NAMED["stampede"], "no template for CR101 CR207"),
        (["CR308"], NAMED["stampede"], "no template for CR308"),
    ],
)
def test_a_schedule_without_a_template_is_told(codes, schedule, why, nothing) -> None:
    with pytest.raises(NoScript, match=why):
        script_for([finding(code) for code in codes], schedule, nothing, PARTS)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print('reproduced'); exit(1)", True),
        ("print('not reproduced')", False),
        ("print('reproduced')", "reproduced"),
        ("import harness_of_nobody", "ModuleNotFoundError: No module named 'harness_of_nobody'"),
        ("exit(3)", "exit code 3"),
        (
            CLEAN,
            True,
        ),
    ],
)
def test_what_a_run_of_a_script_says_is_told_apart(program, answer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "repro.py"
    path.write_text(program)
    assert run_script(path, sys.executable) == answer


def test_an_interpreter_that_is_none_is_told(tmp_path) -> None:
    path = tmp_path / "repro.py"
    path.write_text("")
    said = run_script(path, str(tmp_path / "python"))
    assert isinstance(said, str)
    assert "could not be started" in said


def test_the_line_that_is_printed() -> None:
    emitted = Emitted(Path("r/repro.py"), "CR301", 2, 3, "boom")
    assert emitted.said == ("r/repro.py shows CR301 by itself: reproduced 2 of 3; one said: boom")
