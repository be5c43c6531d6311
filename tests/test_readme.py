"""What the README shows can be done as it is written there."""

import re
from pathlib import Path

import pytest

from dflash_min.cli import parse
from harness.__main__ import commands
from harness.events import files
from harness.render import WRITERS, file_name
from harness.render.perfetto import TRACE
from harness.spec import RunSpec, arguments_of_file

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_of_a_spec_file_is_one(tmp_path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "run.toml").write_text(block, encoding="utf-8")
    given = arguments_of_file(tmp_path / "run.toml")
    assert len(given) > 4
    spec = parse(RunSpec, given, prog="test", description="")
    assert spec.drafter_threads() == 3
    assert not spec.watch.source


@pytest.mark.parametrize(
    "name",
    [
        *map(file_name, WRITERS),
        *(TRACE, files.EVENTS, files.RUN, files.ENDED, files.CHILD_LOG),
        *("events-PID.jsonl", "steady-PID-N.jsonl"),
    ],
)
def test_every_file_of_a_run_folder_is_explained(name) -> None:
    section = README.split("## Run folder")[1].split("\n## ")[0]
    assert f"`{name}`" in section


def test_every_command_is_in_the_table() -> None:
    section = README.split("## Commands")[1].split("\n## ")[0]
    for name in commands():
        assert f"`python -m {name}" in section
