"""Words and short cuts of the rule tests: what threads do in a hand-made recording."""

from .build import MAIN, context

A, B, C, DUMMY = 4001, 4002, 4003, 4090
GRAD_MODE = "0/0: GLOBAL_STATE changed: grad_mode "
OTHER_DEVICE = (
    "0/0: tensor 'query' Tensor device index mismatch. "
    "Expected device index to be \x00, actual \x01"
)
SIZE = "0/0: tensor 'query' size mismatch at index 2. expected 512, actual 640"


def roots(report):
    return {finding.code for finding in report.findings if finding.root}


def codes(report):
    return {finding.code for finding in report.findings}


def find(report, wanted):
    return next(finding for finding in report.findings if finding.code == wanted)


def warm(script, *, grad=True, number="0/0", **rest):
    script.call(MAIN, ctx=context(grad=grad))
    script.compile(MAIN, number, ctx=context(grad=grad), **rest)
    script.backward(MAIN)


def two_threads(script):
    script.thread(A, "drafter-0")
    script.thread(B, "drafter-1")
    script.call(A)
    script.call(B)
