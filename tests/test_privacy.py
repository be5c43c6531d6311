"""What a run leaves behind: for its user's eyes, and without tokens, passwords and homes."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The last is printed by the program itself, whose own output is its own affair.
ARGV, ENV, MESSAGE, SOURCE = "cl1-argv0", "cl1-env00", "cl1-mess0", "cl1-srce0"
# Only the shape of a thread's name tells that a secret is in it.
NAME = "hf_" + "cl1name0" * 4

PROGRAM = f"""
    import sys, threading
    def fail(secret):
        raise ValueError("no access with password=" + secret + " from " + sys.argv[3])
    thread = threading.Thread(target=fail, args=("{MESSAGE}",), name="get {NAME}")
    thread.start(); thread.join()
    raise PermissionError("token='{SOURCE}'")
"""


@pytest.fixture(scope="module", params=[True, False], ids=["source", "no-source"])
def run(request, tmp_path_factory):
    """A watched program that has secrets everywhere; its home is named nowhere else."""
    home = tmp_path_factory.mktemp("ada-lovelace")
    program = home / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    flags = [] if request.param else ["--no-source"]
    command = [sys.executable, "-m", "harness.watch", *flags, "--", str(program)]
    done = subprocess.run(
        [*command, "--token", ARGV, str(home / "data")],
        cwd=home,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(home),
            "TORCH_HUB_TOKEN": ENV,
            "TORCH_PROXY": f"http://ada:{ENV}@localhost:1",
            "SECRET_OF_NO_CONCERN": ENV,
        },
        capture_output=True,
        text=True,
        check=False,
        umask=0o002,
    )
    (folder,) = (home / "reports").iterdir()
    return request.param, home, folder, done


def test_every_file_is_for_its_owner_alone(run) -> None:
    _, _, folder, _ = run
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 7
    assert {oct(path.stat().st_mode & 0o077) for path in paths} == {"0o0"}


def test_no_secret_is_in_any_file_nor_in_what_is_printed(run) -> None:
    _, _, folder, done = run
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    texts["printed"] = done.stdout
    for name, text in texts.items():
        for secret in (ARGV, ENV, MESSAGE, SOURCE, NAME):
            assert secret not in text, name
    assert "password=***" in texts["report.md"]
    assert "get ***" in texts["report.md"]
    assert '"name": "get ***"' in texts["events.jsonl"]
    assert '"thread": "get ***"' in texts["events.jsonl"]
    recorded = json.loads(texts["events.jsonl"].splitlines()[0])["data"]
    assert recorded["argv"][-3:-1] == ["--token", "***"]
    assert recorded["env"]["TORCH_HUB_TOKEN"] == "***"
    assert recorded["env"]["TORCH_PROXY"] == "http://ada:***@localhost:1"
    assert "SECRET_OF_NO_CONCERN" not in recorded["env"]
    assert not {name[:4] for name in recorded["env"]} & {"HOME", "USER", "PATH"}
    assert "--token '***'" in json.loads(texts["run.json"])["replay"]
    assert "--token" in json.loads(texts["ended.json"])["command"]


def test_the_users_home_is_in_the_recording_only(run) -> None:
    _, home, folder, done = run
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.name.startswith("report") or path.name == "trace.json":
            assert str(home) not in text, path
        elif path.name == "events.jsonl":
            assert str(home) in text  # by which source lines are found
    assert "~/program.py" in (folder / "report.md").read_text(encoding="utf-8")
    # A link to the report is of use on this machine only.
    shown = [line for line in done.stdout.splitlines() if not line.startswith("Full report")]
    assert str(home) not in "\n".join(shown)


def test_the_report_has_the_lines_of_the_frames_that_it_shows_unless_told_not_to(run) -> None:
    source, _, folder, done = run
    line = 'raise ValueError("no access with password='
    for name in ("report.md", "report.json", "report.html"):
        text = (folder / name).read_text(encoding="utf-8").replace("&#34;", '"').replace('\\"', '"')
        assert (line in text) == source, name
    assert (line in done.stdout) == source
    held = json.loads((folder / "report.json").read_bytes())["source"]
    files = {each["file"] for each in held}
    assert ("~/program.py" in files) == source
    assert not source or "token='***'" in "".join(each["text"] for each in held)
