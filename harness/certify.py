"""Proves a warm-up: of the built-in trainer, or of any program given after ``--``."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dflash_min.cli import parse, say
from harness.certificate import text
from harness.certificate.model import Certificate
from harness.certificate.options import CertifyOptions, ProgramSpec, TrainerSpec
from harness.certificate.prove import Extent, Proof, Subject
from harness.certificate.subjects import Watching, program, trainer
from harness.child.privacy import mask_argv
from harness.command import command
from harness.events.files import write_whole
from harness.exits import ExitCode
from harness.render.output import reader_may_leave
from harness.spec import RunSpec
from harness.supervise.folder import make_run_folder, missing_parents, remove_run_folder
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.program import read_program

PROG = "harness.certify"
_ROUNDS = 3


@command(PROG)
def main(argv: list[str]) -> int:
    """Prove, write and print the certificate; returns the exit code."""
    if "--" in argv:
        slug, options, subject = _program(argv)
    else:
        slug, options, subject = _trainer(argv)
    made = missing_parents(options.out)
    folder = make_run_folder(options.out, f"certify-{slug}")
    say(PROG, f"certifying in {folder}")
    certificate = None
    try:
        for certificate in _rounds(subject, options, folder):
            _write(certificate, folder)
    except BaseException:
        if certificate is None:  # in the first round: there is nothing yet to be kept
            remove_run_folder(folder, made)
        raise
    assert certificate is not None
    with reader_may_leave(kept=lambda line: say(PROG, line)):
        sys.stdout.write(_json(certificate) if options.json else text.terminal(certificate))
    return _last(certificate).exit_code


def _rounds(subject: Subject, options: CertifyOptions, folder: Path) -> Iterator[Certificate]:
    """Yield the certificate after each round.

    With ``--apply`` there are more: the warm-up that each one suggests is in the next.
    """
    extent = Extent(options.explore, options.jobs)
    found: list[Certificate] = []
    following: Subject | None = subject
    while following is not None and len(found) < _ROUNDS:
        if found:
            say(PROG, "again with the warm-up that covers what is missing")
        try:
            certificate, better = Proof(PROG, following, extent, folder).run()
        except KeyboardInterrupt:
            if not found:
                raise
            certificate, better = _interrupted(found.pop()), None
        found.append(certificate)
        yield _nested(found)
        following = better if options.apply and not certificate.interrupted else None


def _interrupted(certificate: Certificate) -> Certificate:
    return msgspec.structs.replace(
        certificate, interrupted=True, exit_code=int(ExitCode.INTERRUPTED)
    )


def _nested(found: Sequence[Certificate]) -> Certificate:
    """The first one, with the one that came after each in it."""
    *earlier, certificate = found
    for each in reversed(earlier):
        certificate = msgspec.structs.replace(each, after=certificate)
    return certificate


def _write(certificate: Certificate, folder: Path) -> None:
    try:
        write_whole(folder / "certificate.json", _json(certificate))
        write_whole(folder / "certificate.md", text.markdown(certificate))
    except OSError as error:
        say(PROG, f"the certificate cannot be written to {folder}: {error.strerror or error}")


def _json(certificate: Certificate) -> str:
    return msgspec.json.format(msgspec.json.encode(certificate), indent=1).decode() + "\n"


def _last(certificate: Certificate) -> Certificate:
    while certificate.after is not None:
        certificate = certificate.after
    return certificate


def _trainer(argv: Sequence[str]) -> tuple[str, CertifyOptions, Subject]:
    spec = parse(TrainerSpec, argv, prog=PROG, description=__doc__ or "")
    spec.certify.check()
    threads = RunSpec(train=spec.train).drafter_threads()
    python = inspect(sys.executable)
    check_torch(python, needed=True)
    watching = Watching(spec.certify.timeout, spec.certify.keep_cache, threads)
    subject = trainer(spec.train, python, watching, _again(argv))
    return f"run-{spec.train.warmup}", spec.certify, subject


def _program(argv: Sequence[str]) -> tuple[str, CertifyOptions, Subject]:
    split = argv.index("--")
    spec = parse(ProgramSpec, argv[:split], prog=PROG, description=__doc__ or "")
    spec.certify.check()
    given = read_program(argv[split + 1 :], spec.python)
    python = inspect(spec.python or given.python or sys.executable, given.module)
    check_torch(python, needed=False)
    watching = Watching(spec.certify.timeout, spec.certify.keep_cache)
    return given.slug, spec.certify, program(given, python, watching, _again(argv))


def _again(argv: Sequence[str]) -> str:
    return shlex.join(["python", "-m", PROG, *mask_argv(argv)])


if __name__ == "__main__":
    sys.exit(main())
