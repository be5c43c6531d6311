"""What each renderer makes of one report per verdict."""

import io
import json
import re

import pytest
from rich.console import Console

from harness.diagnosis.report import Report, loads
from harness.render import WRITERS
from harness.render.terminal import print_report
from harness.render.view import View

from .samples import SAMPLES

VERDICTS = pytest.mark.parametrize("verdict", SAMPLES)


@VERDICTS
def test_markdown(verdict, golden):
    golden(WRITERS["md"](View.of(SAMPLES[verdict])), "md")


@VERDICTS
def test_html(verdict, golden):
    page = WRITERS["html"](View.of(SAMPLES[verdict]))
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)
    golden(re.sub(r"\n\s*\n+", "\n", page), "html")


@VERDICTS
def test_plain_text(verdict, golden):
    file = io.StringIO()
    print_report(SAMPLES[verdict], Console(file=file, width=80))
    golden(file.getvalue(), "txt")


@VERDICTS
def test_json_gives_the_report_back_with_its_keys_in_order(verdict):
    text = WRITERS["json"](View.of(SAMPLES[verdict]))
    assert loads(text.encode()) == SAMPLES[verdict]
    assert list(json.loads(text)) == list(Report.__struct_fields__)
