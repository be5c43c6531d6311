"""Proves a warm-up: of the built-in trainer, or of any program given after ``--``."""

import shlex
import sys
from collections.abc import Sequence
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
    try:
        certificate = _rounds(subject, options, folder)
    except BaseException:  # in the first run: there is nothing yet to be kept
        remove_run_folder(folder, made)
        raise
    written = msgspec.json.format(msgspec.json.encode(certificate), indent=1).decode() + "\n"
    try:
        write_whole(folder / "certificate.json", written)
        write_whole(folder / "certificate.md", text.markdown(certificate))
    except OSError as error:
        say(PROG, f"the certificate cannot be written to {folder}: {error.strerror or error}")
    with reader_may_leave():
        sys.stdout.write(written if options.json else text.terminal(certificate))
    return _last(certificate).exit_code


def _rounds(subject: Subject, options: CertifyOptions, folder: Path) -> Certificate:
    """The certificate; with ``--apply`` those with the warm-ups that each one suggests in it."""
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
            found.append(
                msgspec.structs.replace(
                    found.pop(), interrupted=True, exit_code=int(ExitCode.INTERRUPTED)
                )
            )
            break
        found.append(certificate)
        following = better if options.apply and not certificate.interrupted else None
    certificate = found.pop()
    while found:
        certificate = msgspec.structs.replace(found.pop(), after=certificate)
    return certificate


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
