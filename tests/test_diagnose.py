"""Diagnosis after the fact: texts of every kind give their cause, and say how sure that is."""

import codecs
import gzip
import json
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import harness
from harness.diagnose import main
from harness.exits import ExitCode

LOGS = Path(__file__).parent / "logs"
EXPECTED = tomllib.loads((LOGS / "expected.toml").read_text())
LINE = "V1129 12:00:00.000000 7 torch/_dynamo/guards.py:5396] [0/{n}] [__recompiles] {text}\n"


def recompile(number, *reasons, function="block"):
    heading = f"Recompiling function {function} in /home/user/project/model.py:12"
    texts = (heading, "    triggered by the following guard failure(s):", *reasons)
    return "".join(LINE.format(n=number, text=text) for text in texts)


GRAD = recompile(1, "    - 0/0: GLOBAL_STATE changed: grad_mode ")
VALUE_ERROR = (
    "Exception in thread trainer:\nTraceback (most recent call last):\n"
    '  File "/home/user/project/train.py", line 7, in loop\n    step()\n'
    "ValueError: no labels\n"
)


@pytest.fixture
def diagnosed(capsys, tmp_path):
    """Diagnoses texts and gives the report as JSON, with the exit code in ``exit``."""

    def run(*texts, **named):
        paths = []
        for number, text in enumerate(texts):
            path = text
            if not isinstance(text, Path):
                path = tmp_path / f"text-{number}.log"
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
            paths.append(str(path))
        code = main([*paths, "--json"])
        out = capsys.readouterr().out
        return {**(json.loads(out) if out else {}), "exit": code}

    return run


def roots(report):
    return [finding["code"] for finding in report["findings"] if finding["root"]]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_text_gives_its_cause(name, diagnosed) -> None:
    wanted = EXPECTED[name]["roots"]
    report = diagnosed(LOGS / name)
    assert sorted(set(roots(report))) == sorted(wanted)
    assert set(EXPECTED[name].get("follow", ())) <= {f["code"] for f in report["findings"]}
    assert report["exit"] == (ExitCode.FOUND if wanted else ExitCode.INCOMPLETE)


def test_what_repeats_too_often_to_be_kept_is_counted(diagnosed) -> None:
    report = diagnosed(VALUE_ERROR * 7 + GRAD * 6)
    left = [gap for gap in report["not_watched"] if gap["state"] == "left out"]
    said = [(gap["name"], gap["reason"].split(" more")[0]) for gap in left]
    assert sorted(said) == [("recompiles", "2"), ("tracebacks", "3")]


def test_the_incident_is_told_from_its_log_and_its_traceback(diagnosed) -> None:
    report = diagnosed(LOGS / "by_hand" / "fx_flag_incident.log")
    codes = [finding["code"] for finding in report["findings"]]
    assert codes == ["CR101", "CR303", "CR301"]
    assert report["environment"]["torch"] == "2.11"
    sure = {s["certainty"] for finding in report["findings"] for s in finding["statements"]}
    assert sure == {"observed", "inferred", "unknown"}
    assert any("harness.watch" in gap["reason"] for gap in report["not_watched"])


def test_evidence_names_the_line_of_the_text(capsys, tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n" * 500 + GRAD)
    main([str(log)])
    assert "[train.log:501]" in capsys.readouterr().out


def test_help_names_files_by_the_word(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "usage: harness.diagnose [-h] [OPTIONS] [FILE [FILE ...]]"
    assert "STR" not in said


def test_a_comma_is_a_part_of_a_files_name(diagnosed, tmp_path) -> None:
    path = tmp_path / "rank 0, node 1.log"
    path.write_text(GRAD)
    assert roots(diagnosed(path)) == ["CR101"]


def test_a_frame_of_compile_wrapper_alone_proves_nothing(diagnosed) -> None:
    frame = (
        '  File "/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 1166, '
        "in compile_wrapper\n    result = fn(*args, **kwargs)\n"
    )
    text = VALUE_ERROR.replace("ValueError", f"{frame}ValueError", 1)
    assert roots(diagnosed(text)) == ["CR905"]


def test_a_recompile_in_one_named_thread_is_no_race(diagnosed) -> None:
    prefix = "2026-11-29 12:00:00,000 MainThread WARNING "
    first = recompile(1, "    - 0/0: tensor 'x' size mismatch at index 0. expected 8, actual 9")
    text = "".join(
        prefix + line.partition("[__recompiles] ")[2] + "\n" for line in first.splitlines()
    )
    report = diagnosed(text)
    assert report["findings"] == []
    assert report["exit"] == ExitCode.INCOMPLETE


DRESSES = {
    "plain": lambda line: line,
    "rank": lambda line: f"[rank3]:{line}",
    "torchrun": lambda line: f"[default0]:{line}",
    "srun": lambda line: f"0: {line}",
    "colour": lambda line: f"\x1b[33m{line}\x1b[0m",
    "time": lambda line: f"2026-11-29T12:00:00.123456Z stderr F {line}",
    "progress": lambda line: f"45%|####     | 9/20\r{line}",
    "actor": lambda line: f"(Trainer pid=812, ip=10.0.0.2) {line}",
    "unknown": lambda line: f"<trainer7> {line}",
}


@pytest.mark.parametrize("dress", DRESSES)
def test_prefixes_hide_nothing(dress, diagnosed) -> None:
    text = "".join(DRESSES[dress](line) + "\n" for line in VALUE_ERROR.splitlines())
    report = diagnosed(text)
    assert roots(report) == ["CR905"]
    frames = report["errors"][0]["chain"][0]["frames"]
    assert [frame[2] for frame in frames] == ["loop"]


@pytest.mark.parametrize("dress", ["rank", "srun", "colour", "time"])
def test_prefixes_before_torchs_own_hide_nothing(dress, diagnosed) -> None:
    text = "".join(DRESSES[dress](line) + "\n" for line in GRAD.splitlines())
    assert roots(diagnosed(text)) == ["CR101"]


def test_ranks_are_told_apart_line_by_line(diagnosed) -> None:
    one = [f"[rank0]:{line}" for line in VALUE_ERROR.splitlines()]
    other = [f"[rank1]:{line}" for line in VALUE_ERROR.replace("trainer", "loader").splitlines()]
    mixed = "\n".join(line for pair in zip(one, other, strict=True) for line in pair)
    report = diagnosed(mixed + "\n")
    assert {error["thread"]["name"] for error in report["errors"]} == {"trainer", "loader"}
    assert len({error["thread"]["pid"] for error in report["errors"]}) == 2


def test_a_chain_and_a_group_are_read_with_their_members(diagnosed) -> None:
    def boom(number):
        raise ValueError(f"no labels for {number}")

    script = (
        "def boom(n): raise ValueError(f'no labels for {n}')\n"
        "errors = []\n"
        "for n in range(2):\n"
        "    try: boom(n)\n"
        "    except ValueError as error: errors.append(error)\n"
        "try: raise ExceptionGroup('two failed', errors)\n"
        "except ExceptionGroup as group: raise RuntimeError('stopped') from group\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    report = diagnosed(done.stderr)
    (error,) = report["errors"]
    links = [(link["type"], link["message"], link["relation"]) for link in error["chain"]]
    assert links[0] == ("RuntimeError", "stopped", "self")
    assert ("ExceptionGroup", "two failed (2 sub-exceptions)", "cause") in links
    members = {message for _, message, relation in links if relation == "member"}
    assert members == {"no labels for 0", "no labels for 1"}


def test_several_texts_are_one_run_s(diagnosed) -> None:
    report = diagnosed(GRAD, VALUE_ERROR)
    assert sorted(roots(report)) == ["CR101", "CR905"]


def test_gzip_is_told_by_its_first_bytes_and_damage_is_survived(diagnosed, capsys) -> None:
    packed = gzip.compress((GRAD * 3).encode() + bytes(range(256)) * 2000)
    assert roots(diagnosed(packed)) == ["CR101"]
    # Cut short, it is read up to there.
    whole = gzip.compress(GRAD.encode() + b"step\n" * 200_000, compresslevel=0)
    assert roots(diagnosed(whole[: len(whole) // 2])) == ["CR101"]


def test_the_standard_input_and_no_torch_at_all() -> None:
    program = (
        "import sys\n"
        "class None_:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('there is no torch')\n"
        "sys.meta_path.insert(0, None_())\n"
        "from harness.diagnose import main\n"
        "sys.exit(main(['-', '--expect', 'CR101']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=GRAD.encode(), capture_output=True, check=False
    )
    assert done.returncode == ExitCode.CLEAN, done.stderr.decode()


def test_what_is_not_recognised_ends_with_5_and_one_line(capsys, tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5\n" * 1000)
    assert main([str(log)]) == ExitCode.NOTHING_RAN
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "train.log" in said.err


def test_out_keeps_a_run_folder_that_report_reads(capsys, tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text(GRAD)
    assert main([str(log), "--out", str(tmp_path / "reports")]) == ExitCode.FOUND
    (folder,) = (tmp_path / "reports").iterdir()
    assert (folder / "report.html").exists()
    capsys.readouterr()
    assert main([str(folder), "--json"]) == ExitCode.FOUND
    assert roots(json.loads(capsys.readouterr().out)) == ["CR101"]


FX = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
STANCE = (
    "Detected recompile when torch.compile stance is 'fail_on_recompile'. filename: "
    "'/home/user/project/model.py', function name: 'block', line number: 12"
)
SAID = {
    "alone": "{}",
    "typed": "RuntimeError: {}",
    "worker": "worker 3 failed: {}",
    "pytest": "E       RuntimeError: {}",
    "pytest's summary": "FAILED tests/test_step.py::test_step - RuntimeError: {}",
    "logger": "2026-11-29 12:00:00,123 - trainer.loop - ERROR - step 7 failed: {}",
    "rank and colour": "\x1b[31m[rank1]:RuntimeError: {}\x1b[0m",
    "docker": "#12 5.123 RuntimeError: {}",
    "border": "│ RuntimeError: {} │",
    "repr": "caught RuntimeError({!r})",
    "json": '{{"level": "error", "step": 7, "message": "RuntimeError: {}"}}',
    "json with its traceback": '{{"exc": "Traceback (most recent call last):\\n  File \\"a.py\\", '
    'line 1, in f\\nRuntimeError: {}"}}',
    "json in json": '{{"log": "{{\\"message\\": \\"{}\\"}}\\n"}}',
    "logfmt": 'ts=12:00 level=error msg="step failed: {}"',
}
QUOTED = {
    "prose": 'I read about "{}" in a blog. Is it bad?',
    "prose without quotes": "I got {} in a blog.",
    "typographic": "People speak of “RuntimeError: {}” often.",
    "markdown": "The message `RuntimeError: {}` means a race.",
    "comment": "# RuntimeError: {}",
    "comment behind": "step()  # RuntimeError: {}",
    "other comment": "    // RuntimeError: {}",
    "string": '                            "{} "',
    "prefixed string": '    message = f"{}"',
    "raise": '        raise RuntimeError("{}")',
    "argument": '    logger.error("step failed: {}")',
    "keyword": '        msg="{}",',
    "prose in json": '{{"text": "I read about \\"{}\\" in a blog"}}',
    "dict": '    "CR301": "{}",',
    "raised in pytest": '>       raise RuntimeError("{}")',
}


@pytest.mark.parametrize("error", [FX, STANCE], ids=["line", "message"])
@pytest.mark.parametrize("form", SAID)
def test_an_error_s_text_counts_where_it_stands_as_one(form, error, diagnosed) -> None:
    code = {FX: "CR301", STANCE: "CR312"}[error]
    assert roots(diagnosed(SAID[form].format(error) + "\n")) == [code]


@pytest.mark.parametrize("error", [FX, STANCE], ids=["line", "message"])
@pytest.mark.parametrize("form", QUOTED)
def test_an_error_s_text_does_not_count_where_it_is_quoted(form, error, diagnosed) -> None:
    assert diagnosed(QUOTED[form].format(error) + "\n")["exit"] == ExitCode.NOTHING_RAN


@pytest.mark.parametrize(
    "said",
    [
        "torch._dynamo hit config.recompile_limit (8)",
        "Recompiling function block in /home/user/project/model.py:12",
        "Graph break in user code at /home/user/project/model.py:12",
        "Traceback (most recent call last):\nValueError: no labels",
    ],
)
def test_torch_s_log_lines_do_not_count_where_they_are_quoted(said, diagnosed) -> None:
    assert diagnosed(said)["exit"] != ExitCode.NOTHING_RAN
    assert diagnosed(f'    assert "{said}" in err\n')["exit"] == ExitCode.NOTHING_RAN


def test_source_code_holds_no_errors(diagnosed) -> None:
    package = Path(harness.__file__).parent
    sources = sorted([*(package / "causes").glob("*.py"), *(package / "logs").glob("*.py")])
    assert len(sources) > 30
    assert diagnosed(*sources)["exit"] == ExitCode.NOTHING_RAN


@pytest.mark.timeout(20)
def test_a_long_line_takes_time_in_proportion(diagnosed) -> None:
    for filling in ("a.", "# ", '"', "\\", "E ", "x= ", FX, f'"{FX}'):
        line = filling * (60_000 // len(filling)) + f'"{FX}\n'
        diagnosed(line * 4)


@pytest.mark.parametrize("flag", ["--expect", "--expect-only"])
def test_a_file_may_come_after_what_is_expected(flag, tmp_path, capsys) -> None:
    log = tmp_path / "train.log"
    log.write_text(GRAD)
    assert main([f"{flag}=CR101", str(log)]) == ExitCode.CLEAN
    assert main([f"{flag}=CR101", str(log), str(log), "--json"]) == ExitCode.CLEAN
    assert main([str(log), f"{flag}=CR101,CR102", str(log)]) == ExitCode.FOUND
    assert main([str(log), "--json", str(log), f"{flag}=CR101", str(log)]) == ExitCode.CLEAN
    assert main([flag, "CR101", "--", str(log)]) == ExitCode.CLEAN
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main([flag, "CR101", str(log)])
    said = capsys.readouterr().err
    assert f"write {flag}=CODE, or -- before {log}" in said


@pytest.fixture
def fed():
    """Opens a pipe that holds these bytes; gives its descriptor."""
    opened = []

    def feed(data):
        reader, writer = os.pipe()
        opened.append(reader)
        os.write(writer, data)
        os.close(writer)
        return reader

    yield feed
    for descriptor in opened:
        os.close(descriptor)


def test_a_pipe_is_read_as_the_standard_input_is(fed, diagnosed, capsys) -> None:
    assert roots(diagnosed(Path(f"/dev/fd/{fed(GRAD.encode())}"))) == ["CR101"]
    pipe = f"/dev/fd/{fed(b'step 1')}"
    assert main([pipe]) == ExitCode.NOTHING_RAN
    assert f"nothing in {pipe} is recognised" in capsys.readouterr().err


def test_a_named_pipe_is_read(tmp_path, diagnosed) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(GRAD,), daemon=True)
    writer.start()
    try:
        assert roots(diagnosed(path)) == ["CR101"]
    finally:  # lets the writer go where nobody has read
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        writer.join()


def test_an_error_names_the_path_as_it_was_given(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["/dev/../dev/null"])
    assert "cannot read /dev/../dev/null: it is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["events.jsonl", "report.json", "run.json"])
def test_a_part_of_a_run_folder_names_the_folder(name, tmp_path, capsys) -> None:
    log = tmp_path / "train.log"
    log.write_text(GRAD)
    main([str(log), "--out", str(tmp_path / "reports")])
    (folder,) = (tmp_path / "reports").iterdir()
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main([str(folder / name)])
    assert f"give the folder, {folder}" in capsys.readouterr().err
    alone = tmp_path / name
    (folder / name).rename(alone)
    assert main([str(alone)]) == ExitCode.NOTHING_RAN
    assert "give the whole folder" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_tells_the_encoding(encoding, diagnosed) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    text = mark + (GRAD * 2 + "ü\n" * 70_000).encode(encoding)
    assert roots(diagnosed(text)) == ["CR101"]
    assert roots(diagnosed(gzip.compress(text, 1))) == ["CR101"]
    assert roots(diagnosed(text[:-1])) == ["CR101"]


def test_what_is_compressed_twice_is_read(diagnosed) -> None:
    twice = gzip.compress(gzip.compress(GRAD.encode()))
    assert roots(diagnosed(twice)) == ["CR101"]
    assert diagnosed(gzip.compress(twice[:30]))["exit"] == ExitCode.NOTHING_RAN


@pytest.mark.parametrize("argv", [[], ["/nowhere/at/all.log"], ["--expect", "CR999", "x"]])
def test_errors_of_use_are_one_line_and_code_2(argv, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1


TEXTS = [path.read_bytes()[:12_000] for path in sorted(LOGS.rglob("*.log"))]
PIECES = st.builds(
    lambda text, at, length: text[at : at + length],
    st.sampled_from(TEXTS),
    st.integers(0, 10_000),
    st.integers(1, 3000),
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pieces=st.lists(PIECES | st.binary(max_size=200), min_size=1, max_size=4))
def test_no_bytes_make_it_raise(pieces, tmp_path, capsys) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"".join(pieces))
    assert main([str(path), "--json"]) in {
        ExitCode.FOUND,
        ExitCode.INCOMPLETE,
        ExitCode.NOTHING_RAN,
    }
    capsys.readouterr()
