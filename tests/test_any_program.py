"""``harness.watch`` on programs and environments that never heard of it."""

import importlib.metadata
import json
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from harness.diagnosis.report import Report, loads
from harness.events.files import TORCH_TRACE, event_files

ROOT = Path(__file__).parents[1]
OURS = ("harness", "dflash_min", "msgspec", "tyro", "rich", "psutil")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness.watch", "--out", "runs", *words]


def watch(*words: str, **options) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*words), capture_output=True, check=False, **options)


def program(text: str, name: str = "program.py") -> str:
    Path(name).write_text(textwrap.dedent(text), encoding="utf-8")
    return name


def run_folder() -> Path:
    (folder,) = Path("runs").iterdir()
    return folder


def report() -> Report:
    return loads((run_folder() / "report.json").read_bytes())


def said_by_watch(err: bytes) -> bytes:
    """What the watch wrote at the start, wherever that stands in stderr."""
    found = re.search(rb"harness\.watch: recording in [^\n]+\n", err)
    assert found is not None, err
    return found[0]


# An environment with torch and nothing of ours ---------------------------------------------------


def _of_torch() -> set[str]:
    """Torch and what it needs, transitively, as distributions that are installed."""
    found, left = set(), ["torch"]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        left += [re.split(r"[ ;<>=!~\[(]", need)[0] for need in requires if "extra ==" not in need]
    return found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> str:
    """The interpreter of an environment with torch and the standard library, without pip."""
    folder = tmp_path_factory.mktemp("their")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in _of_torch():
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] != ".."}:
            place = importlib.metadata.distribution(name).locate_file(top)
            if Path(str(place)).exists() and not (libraries / top).exists():
                (libraries / top).symlink_to(Path(str(place)))
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "torch.pth").write_text(f"{libraries}\n")
    return str(folder / "venv" / "bin" / "python")


def test_an_environment_with_only_torch_is_enough(bare_python) -> None:
    text = f"""
        import importlib.util, sys, threading
        print([name for name in {OURS} if importlib.util.find_spec(name)], "torch" in sys.modules)
        import torch
        fast = torch.compile(lambda x: x.sin() + 1, backend="eager")
        fast(torch.ones(3))
        thread = threading.Thread(target=fast, args=(torch.ones(3),))
        thread.start(); thread.join()
        print(torch.__file__)
    """
    done = subprocess.run(
        command(
            "--passthrough", "--torch-trace", "--python", bare_python, "--", "-P", program(text)
        ),
        env={**os.environ, "PYTHONPATH": ""},
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named harness" in done.stderr:
        pytest.skip("the harness is not installed here, only on PYTHONPATH")
    assert done.returncode == 0, done.stderr
    first, where = done.stdout.splitlines()
    assert first == "[] False"
    assert where.startswith(str(Path(bare_python).parents[2]))
    assert report().verdict == "clean", done.stderr
    assert report().not_watched == ()
    assert report().counts.threads_with_compiled_calls == 2
    (trace,) = (run_folder() / TORCH_TRACE).glob("dedicated_log_torch_trace*.log")
    assert '"compilation_metrics"' in trace.read_text()


# Input and output --------------------------------------------------------------------------------

ECHO = r"""
    import sys
    given = sys.stdin.buffer.read()
    sys.stdout.buffer.write(given[::-1])
    sys.stderr.buffer.write(b"\xff\x00" + given)
    sys.exit(3)
"""


def test_bytes_go_through_as_they_are_and_stdout_is_the_programs_alone() -> None:
    given = bytes(range(256)) * 300
    done = watch("--passthrough", "--", program(ECHO), input=given)
    assert done.returncode == 3
    assert done.stdout == given[::-1]
    rest = done.stderr.replace(said_by_watch(done.stderr), b"", 1)
    assert rest.startswith(b"\xff\x00" + given)
    assert b"The program ended with exit code 3" in rest


def test_a_terminal_stays_one() -> None:
    text = """
        import os, sys
        print([os.isatty(number) for number in (0, 1, 2)], os.get_terminal_size().columns)
        print("got", input())
    """
    words = command("--passthrough", "--", program(text))
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(terminal, b"a line\n")
    said = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            new = os.read(terminal, 65536)
        except OSError:  # the other side has been closed
            break
        said += new
    os.close(terminal)
    assert process.wait() == 0, said
    assert b"[True, True, True] " in said
    assert b"got a line\r\n" in said


# How a program is named --------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_a_command_of_path_is_run_by_its_own_interpreter(path) -> None:
    script = path / "launch"
    script.write_text(f"#!{sys.executable} -P\nimport sys; print(sys.argv, sys.flags.safe_path)\n")
    script.chmod(0o755)
    done = watch("--passthrough", "--", "launch", "--nproc", "2")
    assert done.stdout.decode() == f"{[str(script), '--nproc', '2']} True\n"
    assert event_files(run_folder())


def test_python_and_a_script_are_taken_as_a_shell_takes_them() -> None:
    name = program("import sys; print(sys.argv, sys.flags.optimize)")
    done = watch("--passthrough", "--", sys.executable, "-O", name, "--x")
    assert done.stdout.decode() == f"{[name, '--x']} 1\n"
    assert report().environment.argv[1:] == ("-O", name, "--x")


def test_a_zip_with_a_main_module_is_a_program() -> None:
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.writestr("__main__.py", "import inner, sys; print(inner.NAME, sys.argv)")
        archive.writestr("inner.py", "NAME = __name__")
    done = watch("--passthrough", "--", "app.pyz", "x")
    assert done.stdout.decode() == "inner ['app.pyz', 'x']\n"
    assert event_files(run_folder())


@pytest.mark.parametrize("letter", "IES")
def test_an_option_that_keeps_the_watch_out_is_refused(letter) -> None:
    done = watch("--", f"-{letter}", program("print('ran')"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"python -{letter} keeps the watch out".encode() in done.stderr
    assert not Path("runs").exists()


# What a program's environment has ----------------------------------------------------------------


def test_site_and_user_customisation_run_as_well(tmp_path) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    user = tmp_path / "user" / "lib" / version / "site-packages"
    site = tmp_path / "modules"
    for folder, name in ((user, "usercustomize"), (site, "sitecustomize")):
        folder.mkdir(parents=True)
        text = f"import builtins, sys\nbuiltins.{name} = sys.modules[__name__].__file__\n"
        (folder / f"{name}.py").write_text(text)
    paths = os.pathsep.join([str(site), str(ROOT)])
    done = watch(
        *("--passthrough", "--python", python, "--"),
        program("import os, sys; print(sitecustomize, usercustomize, os.environ['PYTHONPATH'])"),
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUSERBASE": str(tmp_path / "user")},
    )
    mine, users, path = done.stdout.decode().split()
    assert mine == str(site / "sitecustomize.py")
    assert users == str(user / "usercustomize.py")
    assert path.endswith(paths)
    assert event_files(run_folder())


def test_children_are_recorded_and_ranks_named() -> None:
    text = """
        import os, subprocess, sys
        busy = "import threading; t = threading.Thread(target=int); t.start(); t.join()"
        for rank in range(2):
            subprocess.run([sys.executable, "-c", busy], env={**os.environ, "RANK": str(rank)})
    """
    watch("--", program(text))
    assert sorted(report().environment.roles.values()) == ["rank 0", "rank 1"]
    shown = (run_folder() / "report.md").read_text()
    assert "(rank 0)" in shown
    assert "(rank 1)" in shown
    headers = [json.loads(path.read_text().splitlines()[0]) for path in event_files(run_folder())]
    # Processes' recordings are in the order of their numbers, which begin anew now and then.
    assert sorted(header["data"]["rank"] for header in headers) == ["", "0", "1"]
