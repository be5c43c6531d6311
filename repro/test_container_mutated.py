"""CR315: a thread adds to a dict while dynamo is in the middle of it."""

CONSEQUENCE = {"CR901"}  # the thread dies and the program goes on
HEALTHY = ("container_mutated.py", "serial", "copy")


def test_container_mutated_fails(watch):
    result = watch("container_mutated.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR315"}
    assert result.codes <= {"CR315"} | CONSEQUENCE


def test_container_mutated_control_added_before_the_compile(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_container_mutated_fix_is_to_give_a_copy(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
