"""Whatever torch or a program wrote into a report, no renderer lets it act on its medium."""

import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from typing import Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from harness.diagnosis.report import Report, loads
from harness.phrases import quoted
from harness.render import WRITERS, markup, text
from harness.render.terminal import print_report
from harness.render.view import View

from .samples import FOUND

SPECIAL = (
    "`*_[]()<>#|~&!@$^=:;+-.,\\{}'\"/\x00\x01\x07\x08\t\n\r\x1b\x7f\x85\x9b\u202e\u2066\u2028\ufeff"
)
PIECES = st.sampled_from(
    [
        "```", "~~~", "\n\n# h", "\n---\n", "\n===", "| --- |", "</pre>", "<script>", "<!--",
        "-->", "</style>", "\x1b[31m", "\x1b]8;;http://x\x07", "[red]", "[/]", "[link=x]",
        "{{ x }}", "@torch", "#142", "www.x.org", "![a](b)", "    ", "- ", "1. ", "&lt;", "&#124;",
        "__", "**", "a" * 90,
    ]
)  # fmt: skip
"""What means something to a medium, among any other text."""

ANY = st.lists(
    st.one_of(PIECES, st.text(SPECIAL, max_size=8), st.text(max_size=12)), min_size=1, max_size=6
).map("".join)
SHOWN = ANY.filter(lambda value: value.strip() != "" and value.strip(" \n,") != "")
"""Text that is there at all: a report leaves out what is empty."""

FIXED = {"code", "follows_from", "explained_by", "codes"}
"""Texts that decide a report's structure: the chain is drawn by codes."""


def fill(value, kind, replace):
    """The struct ``value`` with every free text in it replaced."""
    if isinstance(value, msgspec.Struct):
        hints = {field.name: field.type for field in msgspec.structs.fields(value)}
        return type(value)(
            **{
                name: fill(getattr(value, name), hints[name], replace)
                if name not in FIXED or isinstance(getattr(value, name), msgspec.Struct)
                else getattr(value, name)
                for name in value.__struct_fields__
            }
        )
    if isinstance(value, tuple | list):
        return type(value)(fill(each, None, replace) for each in value)
    if isinstance(value, dict):
        return {f"{replace}{n}": fill(v, None, replace) for n, v in enumerate(value.values())}
    if isinstance(value, str) and getattr(kind, "__origin__", None) is not Literal:
        return replace
    return value


def with_text(value):
    return fill(FOUND, Report, value)


def acting(output):
    """Characters of an output that a medium would obey and not show."""
    return {
        c
        for c in output
        if c not in "\n\u200c\u200d" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }


@settings(deadline=None, max_examples=40)
@given(ANY, st.sampled_from(["json", "md", "html"]))
@example("\x7f", "json")
@example("\x7f", "md")
@example("\x7f", "html")
def test_files_hold_no_control_byte(value, kind):
    if kind == "json":
        value = re.sub("[\ud800-\udfff]", "?", value)
    output = WRITERS[kind](View.of(with_text(value)))
    assert not acting(output)
    if kind == "json":
        assert loads(output.encode()) == with_text(value)


def unpasted(value):
    """A report without code to paste, whose lines are not folded."""
    report = with_text(value)
    findings = tuple(
        msgspec.structs.replace(f, remedy=msgspec.structs.replace(f.remedy, snippet=""))
        for f in report.findings
    )
    return msgspec.structs.replace(report, findings=findings)


@settings(deadline=None, max_examples=40)
@given(ANY, st.integers(60, 140), st.booleans(), st.sampled_from(["utf-8", "ascii", "cp1252"]))
def test_terminal_holds_no_control_byte(value, width, colour, encoding):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_report(unpasted(value), Console(file=file, width=width, force_terminal=colour))
    file.flush()
    output = raw.getvalue().decode(encoding)
    if colour:
        output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert not acting(output)
    lines = output.split("\n")
    assert lines.pop() == ""
    command = lines.pop()
    assert "".join(command.split()) in "".join(output.split())
    assert max(map(cell_len, lines)) <= width


@settings(deadline=None, max_examples=40)
@given(ANY, st.integers(60, 120))
def test_terminal_folds_and_cuts_nothing(value, width):
    file = io.StringIO()
    report = msgspec.structs.replace(FOUND, headline=value)
    print_report(report, Console(file=file, width=width))
    plain = str.maketrans({"▸": ">", "…": "...", "│": "|", "·": "-", "→": "->"})
    assert squeezed(text.words(value).translate(plain)) in squeezed(file.getvalue())


def squeezed(value):
    return "".join(value.split())


def block_structure(markdown):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    blocks = [(token.type, token.level) for token in tokens]
    marks = [
        [child.type for child in token.children or () if child.type not in PLAIN]
        for token in tokens
        if token.type == "inline"
    ]
    html = [
        child.content
        for token in tokens
        for child in token.children or ()
        if child.type == "html_inline"
    ]
    return blocks, marks, html


PLAIN = {"text", "code_inline", "text_special", "html_inline"}


@settings(deadline=None, max_examples=40)
@given(SHOWN)
@example("</pre>@torch```")
def test_markdown_keeps_its_structure(value):
    expected = block_structure(WRITERS["md"](View.of(with_text("x"))))
    blocks, marks, html = block_structure(WRITERS["md"](View.of(with_text(value))))
    assert blocks == expected[0]
    assert marks == expected[1]
    assert set(html) <= {"<!-- -->", "<br>"}


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.seen = []
        self.text = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag != "code":
            kept = {name: value for name, value in attrs if name != "title"}
            self.seen.append((tag, kept, [name for name, _ in attrs]))

    def handle_endtag(self, tag):
        if tag != "code":
            self.seen.append(tag)

    def handle_decl(self, decl):
        self.seen.append(decl)

    def handle_comment(self, data):
        self.seen.append(("comment", data))

    def handle_data(self, data):
        self.text.append(data)


@settings(deadline=None, max_examples=40)
@given(SHOWN)
def test_html_keeps_its_structure(value):
    assert Tags(WRITERS["html"](View.of(with_text(value)))).seen == (
        Tags(WRITERS["html"](View.of(with_text("x")))).seen
    )


def test_html_uses_nothing_from_outside_and_no_script():
    page = WRITERS["html"](View.of(FOUND))
    tags = Tags(page)
    assert not {tag[0] for tag in tags.seen if isinstance(tag, tuple)} & {"script", "link", "img"}
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page


def texts(value):
    if isinstance(value, dict):
        return {text for key, each in value.items() if key not in FIXED for text in texts(each)}
    if isinstance(value, list):
        return {text for each in value for text in texts(each)}
    return {value} if isinstance(value, str) else set()


def test_fill_reaches_every_text():
    """Or the properties above would hold of nothing."""
    literals = {"found", "observed", "inferred", "unknown", "warm-up", "uncovered", "main"}
    literals |= {"workload", "thread", "self", "watch"}
    filled = json.loads(msgspec.json.encode(with_text("x")))
    for coverage in filled["coverage"] + filled["caches"]:
        assert coverage.pop("code")["name"] == "x"
    assert texts(filled) == {"x"} | literals


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("index to be \x00, actual \x01", "index to be \\x00, actual \\x01"),
        ("a\tb", "a   b"),
        ("a\r\nb", "a\nb"),
        ("\u202eevil", "\\u202eevil"),
        ("\udcff", "\\udcff"),
        ("na\u00efve \u0645\u06cc\u200c\u062e", "na\u00efve \u0645\u06cc\u200c\u062e"),
    ],
)
def test_block(given_text, shown):
    assert text.block(given_text) == shown


MESSAGE = "RuntimeError: out of memory Search for `cudaError' in https://docs.nvidia.com"


@pytest.mark.parametrize(
    "said", [MESSAGE, "`f` and ``g``", "```", "a`", "`", "torch.cuda", MESSAGE.replace("`", "``")]
)
def test_whatever_is_quoted_in_a_sentence_is_one_span_of_code(said):
    sentence = f"Thread `a` raised {quoted(said)} in `b`."
    assert text.spans(sentence) == [
        ("text", "Thread "),
        ("code", "a"),
        ("text", " raised "),
        ("code", said),
        ("text", " in "),
        ("code", "b"),
        ("text", "."),
    ]
    (paragraph,) = (t for t in MarkdownIt().parse(markup.inline(sentence)) if t.type == "inline")
    assert [t.content for t in paragraph.children if t.type == "code_inline"] == ["a", said, "b"]


@given(st.text("`ab \n", min_size=1).filter(str.strip))
def test_what_is_quoted_comes_back(said):
    assert text.spans(quoted(said)) == [("code", " ".join(said.split()))]
