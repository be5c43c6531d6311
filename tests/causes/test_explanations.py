"""What every cause says about itself."""

import ast
import re
from pathlib import Path

import pytest

import harness
from harness.causes import CAUSES
from harness.child.attach import PROBES

FOLDER = Path(harness.__file__).parent
CODES = {cause.EXPLANATION.code for cause in CAUSES}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.EXPLANATION.code)
def test_explanation_is_whole(cause):
    explanation = cause.EXPLANATION
    name = cause.__name__.rpartition(".")[2]
    assert name.startswith(explanation.code.lower() + "_")
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", explanation.title)
    for text in (explanation.what, explanation.why, explanation.evidence, explanation.versions):
        assert text
    assert explanation.remedy.text
    assert set(explanation.needs) <= set(PROBES)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+#\d+", thread) for thread in explanation.upstream)
    for code in explanation.may_follow:
        assert any(known.startswith(code) for known in CODES)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.EXPLANATION.code)
def test_snippets_are_python(cause):
    ast.parse(cause.EXPLANATION.remedy.snippet)


def test_codes_are_given_once():
    assert len(CODES) == len(CAUSES)


@pytest.mark.parametrize("folder", ["timeline", "causes", "diagnosis"])
def test_torch_is_not_imported(folder):
    for path in (FOLDER / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch"], path
