"""``harness.run`` and ``harness.watch`` with bad input: one line, code 2, and nothing left."""

import json
from pathlib import Path

import pytest

from harness import flow, run, watch
from harness.child.recorder import Recorder
from harness.events.ended import Ended
from harness.spec import arguments_of_file


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def fake_python(python: str, torch: str) -> str:
    answer = json.dumps({"python": python, "torch": torch, "cuda": "", "module": True})
    return f"#!/bin/sh\necho '{answer}'\n"


FILES = {
    "a-file": "",
    "broken.toml": "[train\n",
    "table.toml": "[trainer]\nthreads = 3\n",
    "key.toml": "[train]\nthread = 3\n",
    "value.toml": "[train]\nthreads = 'many'\n",
    "empty-word.toml": "[train]\nbackend = ''\n",
    "nul.toml": '[train]\nbackend = "a\\u0000b"\n',
    "old-python": fake_python("3.10.1", ""),
    "old-torch": fake_python("3.11.1", "2.10.0"),
    "script.py": "",
}


BAD_RUN = {
    "--warmup bogus": "--warmup",
    "--threads 0": "--threads must be at least 1",
    "--threads three": "--threads",
    "--threads 10000": "--threads: at most 512 drafters are possible, got 10000",
    "--layout 5+9999": "--layout 5+9999: at most 512 drafters are possible",
    "--layout 513+3": "--layout 513+3: at most 512 targets are possible",
    "--no-such-flag": "no-such-flag",
    "--layout five": "--layout 'five' is not TARGETS+DRAFTERS",
    "--layout 5+3 --threads 4": "--layout 5+3",
    "--seq-lens 4": "shorter than a block",
    "--anchors some": "--anchors",
    "--timeout 0": "--timeout must be a number of seconds above 0",
    "--timeout nan": "--timeout must be a number of seconds above 0",
    "--max-events-mb 0": "--max-events-mb must be at least 1",
    "--no-probe everything": "there is no probe everything",
    "--max-events-mb 99999999999999999999": "must be at least 1 and at most 1048576",
    "--timeout 1e13": "--timeout must be a number of seconds above 0 and at most a year",
    "--out=": "--out is empty",
    "--schedule=": "--schedule is empty",
    "--expect": "--expect: it names nothing",
    "--no-probe ,": "--no-probe: it names nothing",
    "--jobs 0": "--explore and --jobs count runs: at least 1",
    "--jobs 1000000": "--jobs is at most 512",
    "--explore 99999999999999999999": "--explore is at most 1000000",
    "--search-seed 99999999999999999999": "--search-seed must be between 0 and 2**63 - 1",
    "--steps 99999999999999999999": "--steps must be at most 1099511627776",
    "--seq-lens 99999999999999999999": "--seq-lens: a sequence is at most 1048576 tokens long",
    "--lr inf": "--lr must be finite",
    "--spec empty-word.toml": "--backend is empty",
    "--spec nul.toml": "--backend holds a NUL character",
    "script.py": "any other program: python -m harness.watch -- script.py",
    "--threads 2 -- script.py": "any other program: python -m harness.watch -- script.py",
    "--expect CR1": "CR1 is neither clean nor a code",
    "--expect CR999": "there is no cause CR999",
    "--expect clean,CR101": "clean stands alone",
    "--expect CR101 --expect-only CR101": "exclude each other",
    "--spec absent.toml": "--spec absent.toml: No such file",
    "--spec broken.toml": "--spec broken.toml: ",
    "--spec table.toml": "no table [trainer]",
    "--spec key.toml": "[train] has no key thread",
    "--spec value.toml": "--threads",
    "--out a-file": "cannot write to the output folder a-file",
    "--out a-file/deep": "cannot write to the output folder a-file/deep",
}


BAD_WATCH = {
    "": "no program is given after --",
    "script.py": "put -- before the program: -- script.py",
    "-- absent.py": "absent.py: no such script",
    "absent.py --steps 3": "put -- before the program: -- absent.py --steps 3",
    "--timeout 5 script.py": "put -- before the program: -- script.py",
    "--passthrough script.py": "put -- before the program: -- script.py",
    "--no-probe lock,fx script.py -- x": "put -- before the program: -- script.py",
    "./train --steps 3": "put -- before the program: -- ./train --steps 3",
    "--timeout 5 train": "put -- before the program: -- train",
    "--expect CR101 script.py": "put -- before the program: -- script.py",
    "-c pass": "put -- before the program: -- -c pass",
    "--python python -- python script.py": "leave the interpreter out: -- script.py (--python is",
    "-- bash script.sh": "is no Python script",
    "--python= -- script.py": "--python is empty",
    "-m pytest tests": "put -- before the program: -- -m pytest tests",
    "-- -I script.py": "python -I keeps the watch out",
    "-- -m absent.module": "has no module named absent.module",
    "--python absent -- script.py": "cannot start the interpreter absent",
    "--python ./old-python -- script.py": "Python 3.11 or later is needed",
    "--python ./old-torch -- script.py": "torch 2.10.0 is not supported; 2.11 to 2.15 is",
    "--python ./a-file -- script.py": "cannot start the interpreter ./a-file",
    "--timeout -1 -- script.py": "--timeout must be",
    "--out a-file -- script.py": "cannot write to the output folder",
}


@pytest.fixture
def files(tmp_path) -> list[Path]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        if name.startswith("old"):
            (tmp_path / name).chmod(0o755)
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [(run.main, words, message) for words, message in BAD_RUN.items()]
    + [(watch.main, words, message) for words, message in BAD_WATCH.items()],
    ids=[f"run {words}" for words in BAD_RUN] + [f"watch {words}" for words in BAD_WATCH],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    main, words, message, files, tmp_path, capsys
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    prog = "harness.run" if main is run.main else "harness.watch"
    assert said.err.startswith(f"{prog}: error: ")
    assert message in said.err
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("flag", ["--out", "--alert"])
def test_a_blank_word_is_refused_where_it_would_be_run_or_made(flag, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([flag, "  "])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"harness.run: error: {flag} is blank\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_say_that_nothing_is_named(tmp_path) -> None:
    (tmp_path / "spec.toml").write_text("[watch]\nexpect = []\nstop_on = ''\nno_probe = []\n")
    assert arguments_of_file(tmp_path / "spec.toml") == []


@pytest.mark.parametrize(
    ("point", "worked"),
    [
        ("thread_start", False),
        ("block_mask", False),
        ("wrapper", True),
        ("guard_miss", True),
        ("dynamo_compile", True),
        ("phase", True),
        ("step", True),  # the one that goes to a segment of its own
    ],
)
def test_exit_code_2_after_some_work_is_not_taken_for_a_usage_error(
    tmp_path, point, worked
) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", {"schema": 1})
    for _ in range(9000):  # more than is read at once
        recorder.emit("thread_start", {"name": "a thread of some library that starts many"})
    recorder.emit(point, {}, edge="enter")
    ended = Ended(exit_code=2, stderr_tail="warning: x\ntrain: error: --data: is empty\n")
    assert flow.refusal(ended, tmp_path) == (None if worked else "--data: is empty")
    assert flow.refusal(Ended(exit_code=2, stderr_tail="Traceback\nE: x"), tmp_path) is None
    assert flow.refusal(Ended(exit_code=1, stderr_tail=ended.stderr_tail), tmp_path) is None
