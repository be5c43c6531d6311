"""The coverage table: combinations of context and inputs, by running and by asking."""

from collections.abc import Iterable

from harness.certificate.model import Cell
from harness.certificate.seen import Call, Seen, context_of, device_of, inputs_of

MAX_CELLS = 512
MAX_GUARDS = 4

Key = tuple[str, str, int, str, str, str]


class Table:
    """Adds up the calls of several runs. Not safe to use from several threads at once.

    ``left_out``: so many calls, at least, are not in it, since there were so many.
    """

    def __init__(self) -> None:
        self._cells: dict[Key, list[Call]] = {}
        self.left_out = 0

    def add(self, run: Seen) -> None:
        """Take in the calls of one run."""
        self.left_out += run.left_out
        for call in run.calls:
            key = _key(call)
            if key not in self._cells and len(self._cells) >= MAX_CELLS:
                self.left_out += 1
                continue
            self._cells.setdefault(key, []).append(call)

    @property
    def on_gpu(self) -> bool:
        """Whether any call's tensors were on a GPU."""
        return any("cuda" in key[3] for key in self._cells)

    @property
    def uncovered(self) -> list[Call]:
        """Calls after the warm-up that missed, the first of each combination."""
        found = []
        for calls in self._cells.values():
            missed = [call for call in calls if call.late and call.missed]
            found += missed[:1]
        return found

    def cells(self) -> list[Cell]:
        """The table, callable by callable; within one, what is not covered first."""
        found = [_cell(key, calls) for key, calls in self._cells.items()]
        order = {
            name: number for number, name in enumerate(dict.fromkeys(c.callable for c in found))
        }
        return sorted(found, key=lambda cell: (order[cell.callable], cell.device, not cell.missed))


def _key(call: Call) -> Key:
    code = call.event.data.code
    return (code.name, code.file, code.line, device_of(call), context_of(call), inputs_of(call))


def _cell(key: Key, calls: Iterable[Call]) -> Cell:
    calls = list(calls)
    late = [call for call in calls if call.late]
    ran = [call for call in late if call.ran]
    guards = dict.fromkeys(guard for call in late if not call.fits for guard in call.guards)
    return Cell(
        callable=key[0],
        file=key[1],
        line=key[2],
        device=key[3],
        context=key[4],
        inputs=key[5],
        warmed=any(call.ran and not call.late for call in calls),
        threads=tuple(sorted({call.event.thread for call in late})),
        hit=sum(not call.missed for call in ran),
        missed=sum(call.missed for call in ran),
        fits=sum(call.fits for call in late),
        rejected=sum(not call.fits for call in late),
        fits_later=sum(call.fits_late for call in late),
        asked_only=sum(not call.ran for call in late),
        disagreed=sum(call.disagreed for call in ran),
        raced=sum(call.raced for call in ran),
        guards=tuple(guards)[:MAX_GUARDS],
    )
