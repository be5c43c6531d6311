"""Lines of text on a terminal: folded to its width, plain where it is no terminal."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from harness.render.text import block

NARROWEST = 40
_PLAIN = str.maketrans({"▸": ">", "…": "...", "│": "|", "·": "-", "→": "->"})
"""Signs of ours that a log file or an old terminal may not be able to show."""


class Page:
    """Prints text that can hold anything; no mark-up in it is obeyed.

    On a terminal lines are folded to its width and coloured (rich honours ``NO_COLOR``); elsewhere
    they are folded to 80 columns, or ``COLUMNS``, without colours and with plain signs.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width, NARROWEST)
        self._plain = not (console.is_terminal and console.encoding.startswith("utf"))

    def text(self, value: str, style: str = "") -> Text:
        """Text to show: control bytes visible, and only characters that the output can take."""
        value = block(value)
        if self._plain:
            value = value.translate(_PLAIN)
        encoding = self.console.encoding
        if not encoding.startswith("utf"):
            value = value.encode(encoding, "backslashreplace").decode(encoding)
        return Text(value, style=style, end="")

    def join(self, *parts: Text) -> Text:
        """Pieces one after another."""
        return Text.assemble(*parts, end="")

    def fold(self, text: Text, width: int) -> list[Text]:
        """Lines of at most ``width`` columns, without spaces at their ends.

        Words are kept whole where they fit, longer ones are folded, and nothing is left out.
        """
        lines = list(text.wrap(self.console, width, overflow="fold")) or [Text("")]
        for each in lines:
            each.rstrip()
        return lines

    def put(self, text: Text, indent: int = 0, lead: Text | None = None) -> None:
        """Print text, folded, ``indent`` columns in; ``lead`` stands before its first line."""
        lead = lead or Text("")
        width = max(self.width - indent - lead.cell_len, 20)
        for number, piece in enumerate(self.fold(text, width)):
            before = Text(" " * lead.cell_len) if number else lead
            row = self.join(Text(" " * indent), before, piece)
            row.rstrip()
            self._write(row)

    def blank(self) -> None:
        """An empty line."""
        self._write(Text(""))

    def heading(self, title: str) -> None:
        """A section's title, with an empty line before it."""
        self.blank()
        self.put(self.text(title, "bold"))

    def columns(self, left: Sequence[Text], right: Sequence[Text], indent: int = 0) -> None:
        """Two columns side by side, each folded to half of the width."""
        half = (self.width - indent - 3) // 2
        bar = self.text("│", "dim")
        pairs = zip_longest(self._column(left, half), self._column(right, half))
        for one, other in pairs:
            cell = Text("") if one is None else one
            gap = Text(" " * (indent + half - cell.cell_len + 1))
            row = self.join(gap[:indent], cell, gap[indent:], bar, Text(" "), other or Text(""))
            row.rstrip()
            self._write(row)

    def _column(self, lines: Iterable[Text], width: int) -> list[Text]:
        """The lines of a column; what is folded goes on two columns in."""
        column: list[Text] = []
        for each in lines:
            first, *rest = self.fold(each, width - 2)
            column += [first, *(self.join(Text("  "), piece) for piece in rest)]
        return column

    def unfolded(self, text: Text) -> None:
        """A command or a path to paste: on one line, which a terminal itself folds."""
        self._write(text)

    def code(self, snippet: str, indent: int) -> None:
        """Code to paste: its lines as they are, which a terminal itself folds."""
        for each in snippet.strip("\n").split("\n"):
            self._write(self.text(" " * indent + each, "cyan"))

    def _write(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
