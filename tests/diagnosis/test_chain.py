"""Chains: who follows from whom."""

from harness.causes.base import Explanation, Found
from harness.diagnosis.chain import draw
from harness.diagnosis.report import Remedy, Statement

SAID = (Statement("it happened", "observed", (3, 1)), Statement("so did this", "inferred", (2,)))


def explanation(code, may_follow=()):
    return Explanation(
        code=code,
        title=code.lower(),
        what="",
        why="",
        evidence="",
        remedy=Remedy(text=f"avoid {code}"),
        versions="all",
        may_follow=may_follow,
    )


EXPLANATIONS = {
    "CR101": explanation("CR101"),
    "CR301": explanation("CR301", ("CR1", "CR401")),
    "CR401": explanation("CR401", ("CR301",)),
    "CR901": explanation("CR901", ("CR3",)),
}


def found(code, explains=(), because=(), **rest):
    return Found(
        code=code,
        statements=SAID,
        headline="",
        explains=frozenset(explains),
        because=frozenset(because),
        **rest,
    )


def chain(*findings):
    return {f.code: f.follows_from for f in draw(findings, EXPLANATIONS, 1)}


def test_roots_come_first_and_followers_after_what_they_follow_from():
    drawn = draw(
        [found("CR901", (), [3]), found("CR301", [3], [2]), found("CR101", [2])], EXPLANATIONS, 1
    )
    assert [(f.code, f.root, f.follows_from) for f in drawn] == [
        ("CR101", True, ()),
        ("CR301", False, ("CR101",)),
        ("CR901", False, ("CR301",)),
    ]


def test_what_a_cause_may_not_follow_it_does_not():
    assert chain(found("CR101", [1]), found("CR401", (), [1])) == {"CR101": (), "CR401": ()}


def test_two_that_could_follow_each_other_do_not_both():
    assert chain(found("CR301", [1], [2]), found("CR401", [2], [1])) == {
        "CR301": ("CR401",),
        "CR401": (),
    }


def test_a_finding_with_something_of_its_own_is_a_root():
    follower = found("CR301", [2], [1], independent=True)
    assert chain(found("CR101", [1]), follower) == {"CR101": (), "CR301": ()}


def test_no_event_in_common_is_no_chain():
    assert chain(found("CR101", [1]), found("CR301", [2], [3]))["CR301"] == ()


def test_evidence_joins_the_statements_and_the_remedy_is_the_causes():
    (finding,) = draw([found("CR101")], EXPLANATIONS, 77)
    assert finding.evidence == (1, 2, 3)
    assert finding.remedy.text == "avoid CR101"
    assert finding.pid == 77
