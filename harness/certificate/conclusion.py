"""What follows from the runs of a certificate: its verdict, exit code and headline."""

import msgspec

from harness.certificate.model import Certificate, TriedRun
from harness.diagnosis.report import Verdict
from harness.exits import ExitCode
from harness.phrases import count

_CODES: dict[Verdict, ExitCode] = {
    "clean": ExitCode.CLEAN,
    "found": ExitCode.FOUND,
    "failed": ExitCode.FAILED,
    "incomplete": ExitCode.INCOMPLETE,
    "nothing ran": ExitCode.NOTHING_RAN,
}


def conclude(certificate: Certificate) -> Certificate:
    """The same with verdict, exit code and headline.

    A failure of the harness outranks what was found, that what is incomplete, and that clean. A
    schedule that could not be followed says nothing; a run that was cut short, or calls that are
    left out of the coverage table, make it incomplete.
    """
    verdict, headline = _verdict(certificate)
    code = ExitCode.INTERRUPTED if certificate.interrupted else _CODES[verdict]
    return msgspec.structs.replace(
        certificate, verdict=verdict, exit_code=int(code), headline=headline
    )


def _verdict(certificate: Certificate) -> tuple[Verdict, str]:
    tested = certificate.tested
    base = tested[0]
    if base.kind == "nothing ran":
        return "nothing ran", "Nothing to certify: no compiled call was seen."
    failed = [run for run in tested if run.kind == "failed"]
    if failed:
        return "failed", f"The harness failed in {_name(failed[0])}: {failed[0].headline}"
    found = [run for run in tested if run.kind == "found"]
    missed = [cell for cell in certificate.coverage if cell.missed]
    compiles = sum(run.compiles_after_warmup for run in tested)
    if found:
        return "found", _found(found, certificate)
    if missed or compiles:
        names = ", ".join(dict.fromkeys(f"`{cell.callable}`" for cell in missed))
        calls = sum(cell.missed for cell in missed)
        what = f": {count(calls, 'call')} of {names} met no entry of it" if missed else ""
        return "found", (
            f"Not certified: {count(compiles, 'compile')} after the warm-up in "
            f"{count(len(tested), 'run')}{what}."
        )
    short = [run for run in tested if run.kind == "incomplete"]
    if base.kind != "clean" or short:
        run = base if base.kind != "clean" else short[0]
        return "incomplete", f"Not certified: {_name(run)} came to no end: {run.headline}"
    return _nothing_found(certificate)


def _nothing_found(certificate: Certificate) -> tuple[Verdict, str]:
    tested = certificate.tested
    kinds = [run.kind for run in tested[1:]]
    clean = kinds.count("clean")
    nothing = f"0 compiles after the warm-up and 0 findings in {count(clean, 'schedule')}"
    left = [
        f"{kinds.count(kind)} {words}"
        for kind, words in (("impossible", "impossible"), ("not reached", "not reached"))
        if kinds.count(kind)
    ]
    besides = f"; of {len(kinds)} tried, {' and '.join(left)}" if left else ""
    if certificate.interrupted:
        return "incomplete", f"Not certified: interrupted; {nothing} until then{besides}."
    if not clean or not certificate.complete:
        return "incomplete", f"Not certified: {nothing}{besides}."
    if certificate.left_out:
        return "incomplete", (
            f"Not certified: {nothing}{besides}, but the program made more different calls than "
            f"are told apart, and {count(certificate.left_out, 'call')} or more are left out of "
            "the coverage table."
        )
    called = [cell for cell in certificate.coverage if cell.ran]
    threads = {thread for cell in called for thread in cell.threads}
    disagreed = sum(cell.disagreed for cell in called)
    agree = (
        "by running and by asking the cache entries alike"
        if not disagreed
        else f"by running; of {disagreed} calls the cache entries had said otherwise"
    )
    if not called:
        return (
            "incomplete",
            f"Not certified: {nothing}{besides}, but no thread called compiled code.",
        )
    who = count(len(threads), "thread")
    what = count(len({cell.callable for cell in called}), "callable")
    return "clean", (
        f"Certified: {nothing}, and in the run without one{besides}. {who} called {what} in "
        f"{count(len(called), 'combination')} of context and inputs, all of them covered, {agree}."
    )


def _found(found: list[TriedRun], certificate: Certificate) -> str:
    first = found[0]
    where = "without any schedule" if first.what == "as it likes" else f"under {_name(first)}"
    many = len(certificate.tested)
    if many == 1:
        return f"Not certified, {where}: {first.headline}"
    runs = f"{len(found)} of {many} runs found something"
    return f"Not certified: {runs}, the first {where}: {first.headline}"


def _name(run: TriedRun) -> str:
    if run.what == "as it likes":
        return "the run without a schedule"
    kind = {"control": "control", "plan": "plan", "exploration": "explored schedule"}[run.what]
    return f"{kind} {run.name}"
