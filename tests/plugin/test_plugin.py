"""The pytest plugin, on suites of its own."""

import itertools
import subprocess
import sys

import pytest
import torch

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True, scope="module")
def everything_is_imported():
    """What a suite in this process imports is forgotten, and torch bears no second import."""
    from torch.nn.attention import flex_attention  # noqa: F401

    import harness.pytest_check

    with harness.watching(), torch.no_grad():
        # With sizes that vary: for them torch imports more of sympy.
        torch.compile(lambda x: x.sin(), backend="eager", dynamic=True)(torch.ones(3))


BEGIN = """
import itertools, threading
import pytest, torch, harness

numbers = itertools.count()

def compiled(body="(x * 2).sin()"):
    name, space = f"suite_{SUITE}_f{next(numbers)}", {"torch": torch}
    exec(f"def {name}(x): return {body}", space)
    return torch.compile(space[name], backend="eager")
"""
_suites = itertools.count()


@pytest.fixture
def suite(pytester):
    """Write a suite that compiles functions of its own.

    Dynamo remembers by file, line and name which sizes vary, and a suite in this process is not the
    first one. Nor are its threads: a new one gets the number of threads that any has set last.
    """
    torch.set_num_threads(torch.get_num_threads())

    def write(text):
        pytester.makepyfile(BEGIN.replace("{SUITE}", str(next(_suites))) + text)

    return write


CHECKED = """
def test_clean():
    f = compiled()
    f(torch.ones(3))
    harness.warmup_done()
    f(torch.ones(3))

def test_compiles_without_saying_so():
    f = compiled()
    f(torch.ones(3))
    f(torch.ones(4))

def test_compiles_after_its_warmup(compile_race):
    f = compiled()
    f(torch.ones(3))
    compile_race.warmup_done()
    f(torch.ones(4))

def test_first_compile_after_its_warmup(compile_race):
    compile_race.warmup_done()
    compiled()(torch.ones(4))

def test_runs_eager_after_its_warmup(compile_race):
    f = compiled()
    f(torch.ones(3))
    compile_race.warmup_done()
    with torch.compiler.set_stance("force_eager"):
        f(torch.ones(3))
        f(torch.ones(3))

def test_leaves_a_config_behind():
    import torch._dynamo
    torch._dynamo.config.recompile_limit = 77

def test_restores_the_config():
    import torch._dynamo
    torch._dynamo.config.recompile_limit = 8

def test_races():
    f = compiled()
    with torch.no_grad():
        f(torch.ones(3))
    thread = threading.Thread(target=f, args=(torch.ones(3),))
    thread.start()
    thread.join()

def test_fails_by_itself():
    compiled()(torch.ones(2))
    assert 1 == 2, "own failure"

def test_skips():
    pytest.skip("own skip")

def test_expects_an_error():
    with pytest.raises(ZeroDivisionError):
        1 / 0
"""


def test_a_checked_suite(pytester, suite, tmp_path):
    suite(CHECKED)
    result = pytester.runpytest_inprocess(
        "--compile-race-check", f"--compile-race-out={tmp_path / 'kept'}", "--strict-markers", "-rf"
    )
    result.assert_outcomes(passed=3, failed=7, skipped=1)
    text = result.stdout.str()
    failed = {
        line.split("::")[1].split(" ")[0]: line
        for line in text.splitlines()
        if line.startswith("FAILED")
    }
    assert set(failed) == {
        "test_compiles_after_its_warmup",
        "test_first_compile_after_its_warmup",
        "test_runs_eager_after_its_warmup",
        "test_leaves_a_config_behind",
        "test_restores_the_config",
        "test_races",
        "test_fails_by_itself",
    }
    result.stdout.fnmatch_lines(
        [
            "*compile race: CR201 new-shape: *; 1 compile after its warm-up*",
            "*compile race: 1 compile after its warm-up*",
            "*calls or more that ran eager after its warm-up*",
            "*torch._dynamo.config.recompile_limit was the default and is 77*",
            "*compile race: CR101 grad-mode: *",
        ]
    )
    assert "AssertionError: own" in failed["test_fails_by_itself"]
    assert "- Captured compile race call -" in text
    assert len(list((tmp_path / "kept").glob("*/report.json"))) == 11


def test_a_test_that_fails_by_itself_says_what_it_leaves_behind(pytester, suite):
    suite(
        """
def test_fails_and_leaves_a_config(request):
    patch = torch._dynamo.config.patch(recompile_limit=78)
    patch.__enter__()
    request.addfinalizer(lambda: patch.__exit__(None, None, None))
    assert 1 == 2, "own failure"
"""
    )
    result = pytester.runpytest_inprocess("--compile-race-check")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: own failure*", "*recompile_limit was the default and is 78*"]
    )


def test_a_watch_that_cannot_begin_says_why(pytester, tmp_path):
    in_the_way = tmp_path / "in the way"
    in_the_way.write_text("")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(
        "--compile-race-check", f"--compile-race-out={in_the_way}"
    )
    result.assert_outcomes(failed=1)
    assert "in the way" in result.stdout.str()
    assert "has not ended yet" not in result.stdout.str()


def test_without_the_option_nothing_is_watched(pytester, suite):
    suite(CHECKED.replace("own failure", "own"))
    result = pytester.runpytest_inprocess("-k", "not by_itself")
    result.assert_outcomes(passed=9, skipped=1, deselected=1)


MARKED = """
@pytest.fixture(scope="module")
def warm():
    f = compiled()
    f(torch.ones(3))
    return f

names = []

@pytest.mark.compile_race(threads=8, expect="clean")
def test_eight_threads(warm):
    names.append(threading.current_thread().name)
    assert warm(torch.ones(3)).shape == (3,)

def test_eight_threads_ran():
    assert sorted(names) == [f"compile-race-{n}" for n in range(8)]

@pytest.mark.compile_race(threads=3)
def test_every_threads_error_is_shown(warm):
    warm(torch.ones(3))
    raise ValueError("of " + threading.current_thread().name)

@pytest.fixture
def cold():
    f = compiled()
    with torch.no_grad():
        f(torch.ones(3))
    return f

@pytest.mark.compile_race(threads=2, expect="CR101")
def test_a_cause_that_is_expected(cold):
    cold(torch.ones(3))
    raise RuntimeError("as a compile race may")

@pytest.mark.compile_race(threads=2)
def test_a_cause_that_is_not(cold):
    cold(torch.ones(3))

@pytest.mark.compile_race(expect="CR101")
def test_a_cause_that_is_missed(warm):
    warm(torch.ones(3))

@pytest.mark.compile_race(threads=2)
def test_all_skip():
    pytest.skip("not here")
"""


def test_bodies_run_in_threads(pytester, suite):
    suite(MARKED)
    result = pytester.runpytest_inprocess("--strict-markers", "-rf")
    result.assert_outcomes(passed=3, failed=3, skipped=1)
    text = result.stdout.str()
    for number in range(3):
        assert f"ValueError: of compile-race-{number}" in text
        assert f"in thread compile-race-{number}" in text
    result.stdout.fnmatch_lines(
        [
            "*3 of 3 threads failed*",
            "*compile race: expected clean, found: *recompiled*gradients off*",
            "*compile race: expected CR101, clean: *",
        ]
    )


REFUSED = [
    ("threads=0", "threads must be 1 to 1024"),
    ("threads=True", "threads must be 1 to 1024"),
    ("threads='x'", "threads must be 1 to 1024"),
    ("8", "takes threads=N and expect=..."),
    ("expected='clean'", "takes threads=N and expect=..."),
    ("expect='CR1'", "neither clean nor a code"),
    ("expect='CR999'", "there is no cause CR999"),
    ("expect='clean,CR101'", "clean stands alone"),
    ("expect=101", "expect must be clean or codes"),
    ("expect=[101]", "expect must be clean or codes"),
    ("threads=2, expect=[]", "expect must be clean or codes"),
]
SENSELESS = """
import unittest
import pytest

def test_healthy():
    pass

@pytest.fixture
def made():
    print("a fixture was made")

@pytest.mark.compile_race(threads=2)
async def test_async():
    pass

@pytest.mark.compile_race(threads=2)
async def test_async_generator():
    yield

class TestOfUnittest(unittest.TestCase):
    @pytest.mark.compile_race(threads=2)
    def test_it(self):
        pass

@pytest.mark.xfail(strict=False)
@pytest.mark.compile_race(threads=0)
def test_expected_to_fail():
    pass
"""
for _number, (_marker, _) in enumerate(REFUSED):
    SENSELESS += f"""
@pytest.mark.compile_race({_marker})
def test_marker_{_number}(made):
    print("a body ran")
"""
SENSELESS += "\ndef test_healthy_too():\n    pass\n"


def test_a_marker_that_makes_no_sense_fails_its_own_test_alone(pytester):
    pytester.makepyfile(SENSELESS)
    result = pytester.runpytest_inprocess("--strict-markers")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, errors=len(REFUSED) + 4)
    text = result.stdout.str().partition("short test summary info")[0]
    said = {}
    for part in text.split("ERROR at setup of ")[1:]:
        heading, *lines = part.splitlines()
        said[heading.split()[0]] = [line for line in lines if not line.startswith(("__", "=="))]
    assert all(len(lines) == 1 for lines in said.values()), said
    for number, (_, words) in enumerate(REFUSED):
        assert words in said[f"test_marker_{number}"][0]
    for name in ("test_async", "test_async_generator", "TestOfUnittest.test_it"):
        assert "threads run plain test functions" in said[name][0]


def test_a_senseless_marker_ends_no_worker_of_xdist(pytester):
    pytester.makepyfile(SENSELESS)
    result = pytester.runpytest_subprocess("-n", "1", "--strict-markers")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, errors=len(REFUSED) + 4)


def test_the_markers_help_says_that_a_body_without_a_compiled_call_fails(pytester, suite):
    suite("@pytest.mark.compile_race\ndef test_calls_nothing(): pass\n")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    assert "Nothing ran: no call of compiled code was seen" in result.stdout.str()
    told = pytester.runpytest_inprocess("--markers").stdout.str()
    assert "A body that makes no call of compiled code fails: nothing ran" in told


def test_under_xdist_the_same_tests_fail(pytester, suite):
    suite(MARKED)
    # One worker of xdist's, since each imports torch anew.
    result = pytester.runpytest_subprocess("-n", "1", "-k", "a_cause", "--strict-markers")
    result.assert_outcomes(passed=1, failed=2)


def test_loading_the_plugin_imports_neither_torch_nor_the_report():
    program = (
        "import sys, harness.pytest_plugin, harness; harness.warmup_done()\n"
        "print(sorted({'torch', 'msgspec', 'rich', 'jinja2', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
