"""What may be shown to others: no secret and no home folder, and nothing else is changed."""

import re
from pathlib import Path

import msgspec
import pytest

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import Environment, Report, dumps
from harness.diagnosis.sharing import for_sharing, shortener
from harness.events.ended import Ended

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.mark.parametrize(
    ("home", "text", "shown"),
    [
        ("/home/ada", "/home/ada/x.py:3 in f", "~/x.py:3 in f"),
        ("/home/ada", "at '/home/ada'", "at '~'"),
        ("/home/ada", "/home/adam/x and /home/ada.old/x", "~/x and ~/x"),
        ("/data/users/ada", "PYTHONPATH=/data/users/ada/src:/data/users/adam/src",
         "PYTHONPATH=~/src:/data/users/adam/src"),
        ("/data/users/ada/", "(/data/users/ada/x, /mnt/data/users/ada/x)",
         "(~/x, /mnt/data/users/ada/x)"),
        ("", "/Users/ada/x /root/x /root /home/bob/y", "~/x ~/x ~ ~/y"),
        ("", "/rooted/x ./home/ada x/root/y http://host/home/page /home/", None),
        ("/", "/usr/lib and /", None),
        ("/root", "kept in /root/.cache/x; a root finding", "kept in ~/.cache/x; a root finding"),
        ("~", "~/x", None),
        ("/home/a(b", "/home/a(b/x", "~/x"),
        ("", "token=abcdef1234567890 in /root/x", "token=*** in ~/x"),
    ],
)  # fmt: skip
def test_home_folders_are_shortened_wherever_they_stand(home, text, shown) -> None:
    assert shortener(home)(text) == (text if shown is None else shown)


def test_every_text_of_a_report_is_made_safe() -> None:
    report = diagnose(RECORDINGS / "grad_mode")
    report = msgspec.structs.replace(
        report,
        headline="/data/ada/x.py has password=hunter2",
        environment=msgspec.structs.replace(
            report.environment,
            home="/data/ada",
            argv=("python", "/data/ada/x.py", "--token", "abc"),
            env={"TORCH_HOME": "/data/ada/torch"},
        ),
        ended=Ended(exit_code=0, command=["/data/ada/python", "--password", "abc"]),
        replay="python -m harness.watch -- /data/ada/x.py --api-key abc1",
    )
    shared = for_sharing(report)
    text = dumps(shared).decode()
    for secret in ("hunter2", "/data/ada", "abc", "/home/user"):
        assert secret not in text.replace("abcd", "")
    assert shared.headline == "~/x.py has password=***"
    assert shared.environment.argv == ("python", "~/x.py", "--token", "***")
    assert shared.environment.env == {"TORCH_HOME": "~/torch"}
    assert shared.environment.home == "~"
    assert shared.ended is not None
    assert shared.ended.command == ["~/python", "--password", "***"]
    assert shared.replay == "python -m harness.watch -- ~/x.py --api-key ***"


@pytest.mark.parametrize(
    "folder", sorted(p.parent for p in RECORDINGS.glob("*/events.jsonl")), ids=lambda p: p.name
)
def test_a_real_report_loses_nothing_but_its_home_folders(folder) -> None:
    report = diagnose(folder)
    shared = for_sharing(report)
    expected = dumps(report).decode().replace("/home/user/", "~/")
    assert dumps(shared).decode() == re.sub('"home": "/[a-z/]+"', '"home": "~"', expected)
    assert for_sharing(shared) == shared


def test_what_holds_nothing_private_is_the_same_object() -> None:
    report = Report(verdict="clean", exit_code=0, headline="f", environment=Environment(cpus=2))
    assert for_sharing(report) is report
