"""How the watch gets into a process, and that it leaves the process as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.child.attach import PROBES
from harness.child.boot import SCHEMA_VERSION as WRITTEN
from harness.child.settings import VARIABLE, Settings
from harness.events.schema import (
    SCHEMA_VERSION,
    End,
    Header,
    Probe,
    ThreadEnd,
    ThreadError,
    ThreadStart,
)
from harness.supervise.launch import SITE


def test_first_line_is_a_header_with_the_versions_installed(run) -> None:
    child = run("import sys; sys.exit(7)", TORCH_LOGS="", NOT_OURS="secret")
    assert child.code == 7
    header = child.events()[0]
    assert isinstance(header, Header)
    assert header.data.schema == WRITTEN == SCHEMA_VERSION
    assert header.data.python == sys.version.split()[0]
    assert header.data.torch == _torch_version()
    assert header.data.argv[0] == sys.executable
    assert "TORCH_LOGS" in header.data.env
    assert not any("secret" in value for value in header.data.env.values())
    assert isinstance(child.events()[-1], End)


def _torch_version() -> str:
    asked = [sys.executable, "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def test_torch_is_not_imported_by_the_watch(run) -> None:
    child = run("import sys; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert child.out == "False False\n"


def test_nothing_of_ours_becomes_importable(run) -> None:
    program = """
        import importlib.util, os, sys
        for name in ("harness", "recorder", "stacks", "settings", "boot", "imports", "errors"):
            print(name, importlib.util.find_spec(name))
        # An editable install of the harness adds an entry that is no folder.
        print(sum("harness" in folder and os.path.isdir(folder) for folder in sys.path))
    """
    child = run(program)
    found = dict(line.split(" ", 1) for line in child.out.splitlines()[:-1])
    elsewhere = {name for name, spec in found.items() if spec != "None"}
    assert not {name for name in elsewhere if "/child/" in found[name]}
    assert child.out.splitlines()[-1] == "1"


def test_without_the_variable_nothing_happens(run, environment, run_folder) -> None:
    child = run("import sys; print('_compile_race_child' in sys.modules)", **{VARIABLE: ""})
    assert child.out == "False\n"
    assert list(run_folder.iterdir()) == []


def test_the_sitecustomize_that_was_there_runs_and_keeps_its_name(run, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__\nHERE = 1\n")
    path = f"{SITE}{os.pathsep}{other}"
    child = run("import sitecustomize; print(mine, sitecustomize.HERE)", PYTHONPATH=path)
    assert child.out.split() == [str(other / "sitecustomize.py"), "1"]
    assert child.of(Header)


def test_a_failing_sitecustomize_fails_as_it_would_alone(run, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    child = run("print('ran')", PYTHONPATH=f"{SITE}{os.pathsep}{other}")
    assert child.out == "ran\n"
    assert "RuntimeError: theirs" in child.err
    assert child.of(End)


def test_a_failing_watch_leaves_the_program_alone_and_says_why(run, run_folder) -> None:
    broken = Settings(folder=str(run_folder), harness="x", max_events_mb="many")  # type: ignore[arg-type]
    child = run("print('ran')", **{VARIABLE: broken.dumps()})
    assert (child.code, child.out, child.err) == (0, "ran\n", "")
    assert "TypeError" in (run_folder / "child-failure.txt").read_text()


@pytest.mark.parametrize("text", ["not json", "{}", '{"folder": "/nonexistent/x", "harness": ""}'])
def test_unusable_settings_leave_the_program_alone(run, text) -> None:
    child = run("print('ran')", **{VARIABLE: text})
    assert (child.code, child.out, child.err) == (0, "ran\n", "")


def test_every_probe_reports_its_state(run) -> None:
    child = run("print('nothing to watch')")
    states = {event.data.name: event.data.state for event in child.of(Probe)}
    assert set(states) == set(PROBES)
    assert states["threads"] == "live"
    assert states["workload"] == states["guards"] == "idle"


def test_probes_are_named_as_their_modules() -> None:
    import importlib

    for name in PROBES:
        assert importlib.import_module(f"harness.child.probes.{name}").PROBE.name == name


def test_a_disabled_probe_is_not_installed(run, run_folder) -> None:
    settings = Settings(folder=str(run_folder), harness="x", disabled_probes=("threads",))
    program = "import threading; t = threading.Thread(target=print); t.start(); t.join()"
    child = run(program, **{VARIABLE: settings.dumps()})
    states = {event.data.name: event.data.state for event in child.of(Probe)}
    assert states["threads"] == "disabled"
    assert child.of(ThreadStart) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "from multiprocessing.resource_tracker import main;print(1)"],
        ["-c", "from ctypes import cdll\ntry: cdll.LoadLibrary('/none')\nexcept OSError: print(1)"],
    ],
)
def test_helpers_are_left_out(environment, run_folder, arguments) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
    assert list(run_folder.iterdir()) == []


@pytest.mark.parametrize(
    "options", [["-X", "dev", "-W", "ignore"], ["-u"]], ids=["valued", "plain"]
)
def test_a_program_that_only_speaks_of_helpers_is_watched(run_folder, environment, options):
    words = ["torch/_inductor/compile_worker/__main__.py", "cdll.LoadLibrary("]
    command = [sys.executable, *options, "-c", "print(1)", *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    assert (run_folder / "events.jsonl").exists()


def test_compile_workers_and_what_they_start_are_left_out(tmp_path, environment, run_folder):
    worker = tmp_path / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'print(2)'], check=True)\n"
        "print(1)\n"
    )
    command = [sys.executable, str(worker), "--workers=2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n1\n"
    assert list(run_folder.iterdir()) == []


def test_spawned_children_have_files_of_their_own_if_they_do_something(run) -> None:
    program = """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        busy = "import threading; t = threading.Thread(target=int); t.start(); t.join()"
        child = subprocess.Popen([sys.executable, "-c", busy])
        child.wait()
        print(child.pid)
    """
    child = run(program)
    pid = int(child.out)
    # Each has a file for faulthandler as well, which the parent takes away while it is empty.
    recordings = {name for name in child.files() if name.startswith("events")}
    assert recordings == {"events.jsonl", f"events-{pid}.jsonl"}
    theirs = child.events(f"events-{pid}.jsonl")
    assert isinstance(theirs[0], Header)
    assert isinstance(theirs[-1], End)
    assert {event.pid for event in theirs} == {pid}
    assert {event.data.name for event in theirs if isinstance(event, Probe)} == set(PROBES)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_pythons(run, version) -> None:
    python = _python(version)
    program = "import threading; t = threading.Thread(target=int); t.start(); t.join(); 1 / 0"
    child = run(program, python=python)
    assert child.code == 1
    kinds = [type(event) for event in child.events() if not isinstance(event, Probe)]
    assert kinds[0] is Header
    assert set(kinds[1:3]) == {ThreadStart, ThreadEnd}  # in either order
    assert kinds[3:] == [ThreadError, End]
    assert child.of(Header)[0].data.python.startswith(version)
    assert not (child.folder / "child-failure.txt").exists()


def _python(version: str) -> str:
    for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"):
        return str(path)
    found = subprocess.run(
        [f"python{version}", "-c", "import sys; print(sys.executable)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"no Python {version} here")
    return found.stdout.strip()


def test_a_fatal_signal_leaves_the_stacks_of_all_threads(run, run_folder) -> None:
    program = """
        import ctypes, threading
        inside, held = threading.Event(), threading.Event()
        def bystander(): inside.set(); held.wait()
        threading.Thread(target=bystander, daemon=True).start()
        inside.wait()  # start() returns before that function is entered
        def broken(): ctypes.string_at(0)
        broken()
    """
    child = run(program)
    assert child.code == -11
    text = (run_folder / "faulthandler.txt").read_text()
    assert "Segmentation fault" in text
    assert "in broken" in text
    assert "in bystander" in text


def test_a_program_with_its_own_faulthandler_keeps_it(run, run_folder) -> None:
    program = "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)"
    child = run(program)
    assert child.code == -11
    assert "Segmentation fault" in child.err
    assert (run_folder / "faulthandler.txt").read_text() == ""


HOOKED = """
    import importlib, importlib.util, sys, threading
    from _compile_race_child.imports import ImportHooks
    sys.path.insert(0, sys.argv[1])
    hooks = ImportHooks(); hooks.install()
"""


@pytest.fixture
def modules(tmp_path: Path) -> str:
    folder = tmp_path / "modules"
    (folder / "pack").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("from pack import inner\nSEEN = inner.STATE\n")
    (folder / "pack" / "inner.py").write_text("STATE = 'as written'\n")
    (folder / "slow.py").write_text("import time; time.sleep(0.3); DONE = True\n")
    (folder / "broken.py").write_text("import builtins\nbuiltins.tries += 1\nif tries < 2: 1/0\n")
    return str(folder)


def test_a_hook_runs_before_the_importing_statement_returns(run, modules) -> None:
    program = f"""{HOOKED}
    def patch(): sys.modules["pack.inner"].STATE = "patched"
    hooks.when_all_imported(["pack.inner"], patch)
    import pack
    print(pack.SEEN)
    spec = pack.inner.__spec__
    print(type(spec.loader).__name__, "exec_module" in vars(spec.loader))
    importlib.reload(pack.inner)
    print(pack.inner.STATE)
    """
    child = run(program, modules)
    assert child.out.splitlines() == ["patched", "SourceFileLoader False", "as written"], child.err


def test_a_hook_waits_for_all_and_for_the_imported_runs_at_once(run, modules) -> None:
    program = f"""{HOOKED}
    said = []
    hooks.when_all_imported(["slow", "pack"], lambda: said.append("both"))
    import slow; print(said)
    importlib.util.find_spec("pack"); print(said)
    import pack; print(said)
    hooks.when_all_imported(["slow", "pack"], lambda: said.append("again"))
    print(said)
    """
    child = run(program, modules)
    assert child.out.splitlines() == ["[]", "[]", "['both']", "['both', 'again']"], child.err


def test_a_module_whose_import_fails_is_waited_for_again(run, modules) -> None:
    program = f"""{HOOKED}
    import builtins
    builtins.tries = 0
    hooks.when_all_imported(["broken"], lambda: print("imported"))
    try: import broken
    except ZeroDivisionError: print("failed")
    import broken
    """
    assert run(program, modules).out.splitlines() == ["failed", "imported"]


def test_a_hook_runs_once_however_many_threads_import(run, modules) -> None:
    program = f"""{HOOKED}
    calls = []
    hooks.when_all_imported(["slow"], lambda: calls.append(sys.modules["slow"].DONE))
    def load(): import slow; assert calls, "imported before the hook ran"
    threads = [threading.Thread(target=load) for _ in range(8)]
    for t in threads: t.start()
    hooks.when_all_imported(["slow"], lambda: calls.append(sys.modules["slow"].DONE))
    for t in threads: t.join()
    print(calls)
    """
    child = run(program, modules)
    assert (child.out, child.err) == ("[True, True]\n", "")
