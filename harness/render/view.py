"""What the renderers say alike: names, counts, differences and sentences derived from a report."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harness.diagnosis.report import (
    CacheVariant,
    CodeCoverage,
    EagerUse,
    Finding,
    Report,
    ThreadReport,
)
from harness.events.values import ErrorLink, Frame
from harness.phrases import count, listing
from harness.render import chain, facts
from harness.render.lines import EventLines, locate
from harness.render.stacks import short_place
from harness.render.text import natural
from harness.statements import Stack, ThreadRef


@dataclass
class View:
    """A report, the lines of its events, and the texts that every renderer shows alike.

    Attributes:
        report: the report.
        folder: the run folder that it lies in, if known.
        lines: the cited events that were found there.
        most_names: where more threads are named in one place, the last ones are counted; None: all
            are named.
    """

    report: Report
    folder: Path | None = None
    lines: EventLines = field(default_factory=EventLines)
    most_names: int | None = None

    @classmethod
    def of(
        cls, report: Report, folder: Path | None = None, *, most_names: int | None = None
    ) -> "View":
        """Make the view; the cited events are looked up in the folder."""
        return cls(report, folder, locate(report, folder), most_names)

    # Findings -------------------------------------------------------------------------------

    @cached_property
    def chains(self) -> list[tuple[Finding, ...]]:
        """The chains of findings, each from its root on."""
        first = {finding.code: finding for finding in reversed(self.report.findings)}
        ways = chain.paths(self.report.findings)
        return [tuple(first[code] for code in way) for way in ways]

    @cached_property
    def roots(self) -> list[str]:
        """Codes of the root findings, each once."""
        return list(dict.fromkeys(f.code for f in self.report.findings if f.root))

    @cached_property
    def leading(self) -> list[Finding]:
        """The root that the report leads with, and what follows from it in the same process."""
        first = next((finding for finding in self.report.findings if finding.root), None)
        if first is None:
            return []
        own = [finding for finding in self.report.findings if finding.pid == first.pid]
        found, codes = [first], {first.code}
        for finding in own:  # what a finding follows from comes before it
            if codes & set(finding.follows_from):
                codes.add(finding.code)
                found.append(finding)
        return found

    def standing(self, finding: Finding) -> str:
        """Where a finding stands in the chain."""
        if finding.root:
            return "root"
        if finding.follows_from:
            return f"follows from {listing(finding.follows_from)}"
        return "follows from another finding"

    def side_by_side(self, finding: Finding) -> list[tuple[Stack, ...]]:
        """A finding's stacks in pairs, as they are to stand beside each other."""
        return [finding.stacks[at : at + 2] for at in range(0, len(finding.stacks), 2)]

    # Threads --------------------------------------------------------------------------------

    @cached_property
    def _same_name(self) -> Counter[tuple[int, str]]:
        """How many threads of a process have a name."""
        threads = {thread.thread for thread in self.report.threads}
        return Counter((thread.pid, thread.name) for thread in threads)

    @cached_property
    def _processes(self) -> int:
        return len(
            set(self.report.environment.processes) | {t.thread.pid for t in self.report.threads}
        )

    def name(self, thread: ThreadRef) -> str:
        """A thread's name, with its id where the name is not unique, and its process if several."""
        extra = []
        if self._same_name[thread.pid, thread.name] > 1 or not thread.name:
            # Threads that had one id, one after another, are told apart by which of them it is.
            which = f", no. {thread.life} with it" if thread.life > 1 else ""
            extra.append(f"tid {thread.tid}{which}")
        if self._processes > 1:
            role = self.report.environment.roles.get(thread.pid, "")
            extra += [role] if role.startswith("rank ") else []
            extra.append(f"pid {thread.pid}")
        name = thread.name or "thread"
        return f"{name} ({', '.join(extra)})" if extra else name

    def made_by(self, entry: CacheVariant) -> str:
        """Who compiled a cache entry."""
        if entry.before:
            return "whoever it was before the watch began"
        return self.name(entry.made_by) if entry.made_by else "unknown"

    def eager(self, use: EagerUse) -> str:
        """Calls that ran eager, as a sentence."""
        by = self.name(use.by) if use.by else ""
        return f"{self.name(use.thread)}: {facts.eager(use, by)}"

    def names(self, threads: Iterable[ThreadRef]) -> str:
        """``drafter-0, drafter-1 and drafter-2``, each once, in the order of their names.

        Of more than ``most_names`` the last ones are counted.
        """
        once = sorted(dict.fromkeys(threads), key=lambda thread: natural(thread.name))
        return listing((self.name(thread) for thread in once), self.most_names)

    @cached_property
    def _threads(self) -> dict[ThreadRef, ThreadReport]:
        return {thread.thread: thread for thread in self.report.threads}

    def thread(self, ref: ThreadRef) -> ThreadReport | None:
        """What the report says of a thread."""
        return self._threads.get(ref)

    def created(self, ref: ThreadRef) -> str:
        """Who created a thread and where, in one line; empty if that was not recorded."""
        thread = self.thread(ref)
        if thread is not None and thread.role == "autograd":
            serves = f", which serves {self.names(thread.behalf)}" if thread.behalf else ""
            return f"a thread of autograd's{serves}"
        if thread is None or (thread.created_by is None and not thread.creation_stack):
            return ""
        where = _own(thread.creation_stack)
        by = f" by {self.name(thread.created_by)}" if thread.created_by else ""
        return f"created{by}" + (f" in {where.function}, {short_place(where)}" if where else "")

    # Source ---------------------------------------------------------------------------------

    @cached_property
    def _source(self) -> dict[tuple[str, int], str]:
        return {(line.file, line.line): line.text for line in self.report.source}

    def source(self, frame: Frame | None) -> str:
        """The source line of a frame; empty if it is not in the report."""
        return self._source.get((frame.file, frame.line), "") if frame else ""

    # Contexts and config --------------------------------------------------------------------

    @cached_property
    def callers(self) -> list[ThreadReport]:
        """The threads that called compiled code."""
        return [thread for thread in self.report.threads if thread.compiled_calls]

    @cached_property
    def differences(self) -> list[str]:
        """In words, what the threads' contexts and configs do not have in common."""
        return [*self._context_differences(), *self._config_differences()]

    def context_parts(self, thread: ThreadReport) -> list[tuple[str, bool]]:
        """The parts of a thread's context, and for each whether some other thread lacks it."""
        return [
            (part, part not in self._common_parts) for part in split_context(thread.first_context)
        ]

    @cached_property
    def _common_parts(self) -> set[str]:
        contexts = [
            set(split_context(thread.first_context))
            for thread in self.callers
            if thread.first_context and thread.role != "autograd"
        ]
        return set.intersection(*contexts) if contexts else set()

    def _context_differences(self) -> list[str]:
        groups: dict[str, list[ThreadRef]] = {}
        for thread in self.callers:
            # Autograd's threads run in the context of whoever called backward.
            if thread.first_context and thread.role != "autograd":
                own = [part for part, differs in self.context_parts(thread) if differs]
                groups.setdefault(", ".join(own), []).append(thread.thread)
        if len(groups) < 2:
            return []
        said = [
            f"{self.names(threads)}: " + (f"`{own}`" if own else "only what all have in common")
            for own, threads in groups.items()
        ]
        return [f"Contexts differ at the first compiled call. {'; '.join(said)}"]

    def _config_differences(self) -> list[str]:
        threads = self.callers
        said = []
        for key in dict.fromkeys(key for t in threads for key in t.config):
            by_value: dict[str, list[ThreadRef]] = defaultdict(list)
            for thread in threads:
                value = f"`{thread.config[key]!r}`" if key in thread.config else "its default"
                by_value[value].append(thread.thread)
            if len(by_value) > 1:
                ways = [f"{value} in {self.names(those)}" for value, those in by_value.items()]
                said.append(f"`torch._dynamo.config.{key}` differs: {'; '.join(ways)}")
        return said

    # Coverage -------------------------------------------------------------------------------

    @cached_property
    def covered(self) -> list[CodeCoverage]:
        """The compiled functions, those first that some thread missed."""
        return sorted(
            self.report.coverage,
            key=lambda code: not any(thread.state == "uncovered" for thread in code.threads),
        )

    def fared(self, code: CodeCoverage) -> list[str]:
        """How the threads fared with one compiled function, one sentence for each outcome."""
        said = []
        for state, verb in (
            ("warm-up", "made the warm-up"),
            ("covered", "hit what the warm-up compiled and compiled nothing"),
            ("uncovered", "missed"),
        ):
            threads = [thread for thread in code.threads if thread.state == state]
            if threads:
                sure = listing(thread.certainty for thread in threads)
                names = self.names(thread.thread for thread in threads)
                misses, compiles = (
                    sum(thread.misses for thread in threads),
                    sum(thread.compiles for thread in threads),
                )
                tail = ""
                if state == "uncovered":
                    tail = f" ({count(misses, 'miss', 'misses')}, {count(compiles, 'compile')})"
                said.append(f"{names} {verb}{tail} ({sure})")
        said += [
            f"{self.name(of.thread)}, a thread of autograd's, called it{self.behalf(of.behalf)} "
            f"({of.certainty})"
            for of in code.threads
            if of.state == "autograd"
        ]
        return said

    def behalf(self, threads: Sequence[ThreadRef]) -> str:
        """`` on behalf of drafter-0``; empty if it is not known for whom."""
        return f" on behalf of {self.names(threads)}" if threads else ""


def _own(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the program's own; the innermost of any kind if there is none."""
    frames = tuple(frames)
    return next((frame for frame in frames if frame.user), frames[0] if frames else None)


def raised_at(link: ErrorLink) -> Frame | None:
    """The program's innermost frame on an exception's way; None if it has no frames."""
    return _own(reversed(link.frames))


def split_context(text: str) -> list[str]:
    """A context's text as its parts: ``grad on, autocast cpu bfloat16`` has two.

    Commas inside brackets do not divide.
    """
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]
