"""The two files: what they hold, and each mistake with its line."""

import datetime as dt

import pytest

from dflash_min.errors import UsageError
from harness.gating.baseline import BaselineEntry, Key, read_baseline, to_toml
from harness.gating.compare import Measured
from harness.gating.suite import read_suite
from harness.gating.update import Known, updated

TODAY = dt.date(2026, 11, 30)
NASTY = 'tab\t "quoted" back\\slash \x7f é 😀'


def entry(name, result="clean", **more):
    return BaselineEntry(scenario=name, torch="2.13", device="cpu", result=result, **more)


def written(tmp_path, entries):
    path = tmp_path / "baseline.toml"
    path.write_text(to_toml(entries), encoding="utf-8")
    return read_baseline(path)


def test_what_is_written_is_read(tmp_path) -> None:
    entries = [
        entry("b", upstream=NASTY, expires=TODAY, recorded=TODAY, commit="abc"),
        entry("a", "measured", ratio=1.5, tolerance=0.1),
    ]
    baseline = written(tmp_path, entries)
    assert sorted(baseline.entries.values(), key=lambda e: e.scenario) == entries[::-1]
    assert baseline.lines[entries[1].key] == 4


def test_none_is_empty(tmp_path) -> None:
    assert not read_baseline(tmp_path / "none.toml").entries


HEAD = 'schema = 1\n\n[[entry]]\nscenario = "a"\ntorch = "2.13"\ndevice = "cpu"\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("schema = 1\n[[entry\n", 2, "xpected"),
        ("schema = 2\n", 1, "schema"),
        (HEAD, 3, "result"),
        (HEAD + 'result = "clean"\nwhatever = 1\n', 3, "whatever"),
        (HEAD + 'result = "clean"\nexpires = "soon"\n', 3, "expires"),
        (HEAD + 'result = "clean"\n' + HEAD.split("\n", 2)[2] + 'result = "CR101"\n', 8, "line 3"),
    ],
)
def test_a_damaged_one_is_refused_with_the_line(tmp_path, text, line, said) -> None:
    path = tmp_path / "baseline.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        read_baseline(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_what_is_known_to_be_bad_says_where_and_until_when(tmp_path) -> None:
    baseline = written(tmp_path, [entry("a"), entry("b", "CR101", upstream="here")])
    baseline.check({"a": "clean", "b": "CR101"})
    with pytest.raises(UsageError, match=r"baseline\.toml:\d+: b is known as CR101.*expires"):
        baseline.check({"a": "clean", "b": "clean"})


SUITE = """\
schema = 1
baseline = "b.toml"

[scenarios.tests]
pytest = ["test_a.py"]

[specs.one]
{}
"""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("run = 1", "run"),
        ("expect = ['clean']", "run = "),
        ("run = ['--out', 'x']", "--out"),
        ("run = []\nexpect = ['CR999']", "CR999"),
        ("run = []\ncounts = 2", "counts"),
        ("run = []\ngpus = -1", "gpus"),
    ],
)
def test_a_suite_that_makes_no_sense_is_refused_with_the_line(tmp_path, spec, said) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(SUITE.format(spec))
    with pytest.raises(UsageError, match=said) as error:
        read_suite(path)
    assert str(error.value).startswith(f"{path}:7: ")


def test_a_schedule_is_part_of_the_key(tmp_path) -> None:
    path = tmp_path / "gate.toml"
    words = "watch = ['--schedule=stampede', '--', 'program.py', '--schedule', 'no']"
    path.write_text(SUITE.format(words + "\nexpect = ['CR303', 'CR208']"))
    _, spec = read_suite(path).entries
    assert (spec.schedule, spec.expect) == ("stampede", "CR208+CR303")


def measured(name, result, right="clean", **more):
    return Measured(
        key=Key(scenario=name, torch="2.13", device="cpu"), right=right, result=result, **more
    )


def test_an_update_changes_what_ran_here_and_nothing_else(tmp_path) -> None:
    elsewhere = BaselineEntry(scenario="a", torch="2.11", device="NVIDIA H200", result="clean")
    old = entry("same", recorded=dt.date(2026, 1, 1))
    baseline = written(tmp_path, [elsewhere, old, entry("turned"), entry("hangs"), entry("other")])
    results = [
        measured("same", "clean"),
        measured("turned", "CR101"),
        measured("hangs", "hung"),
        measured("new", "clean"),
    ]
    with pytest.raises(UsageError, match="turned is CR101 and should be clean"):
        updated(baseline, results, Known(), TODAY, "abc")
    known = Known("pytorch/pytorch#1", dt.date(2027, 1, 1))
    entries, left = updated(baseline, results, known, TODAY, "abc")
    assert set(entries) == {
        elsewhere,
        old,
        entry("hangs"),
        entry("other"),
        entry("new", recorded=TODAY, commit="abc"),
        entry(
            "turned",
            "CR101",
            upstream=known.upstream,
            expires=known.expires,
            recorded=TODAY,
            commit="abc",
        ),
    }
    assert left == ["hangs: hung, which is no result to record"]


def test_an_update_records_a_ratio_with_a_tolerance_from_its_noise(tmp_path) -> None:
    result = measured("p", "measured", right="measured", ratio=2.0, noise=0.123)
    (new,), _ = updated(written(tmp_path, []), [result], Known(), TODAY, "")
    assert (new.ratio, new.tolerance) == (2.0, 0.12)


def test_runs_that_differ_are_not_recorded(tmp_path) -> None:
    results = [measured("a", "clean"), measured("a", "CR101", run=2)]
    entries, left = updated(written(tmp_path, [entry("a")]), results, Known(), TODAY, "")
    assert entries == [entry("a")]
    assert "differ" in left[0]
