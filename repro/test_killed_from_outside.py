"""CR906: a terminal that vanishes ends the program, and the report says that it was not a crash."""

HEALTHY = ("killed_from_outside.py", "alone", "nohup")


def test_killed_from_outside_fails(watch):
    result = watch("killed_from_outside.py", "hangup")
    assert result.verdict == "found"
    assert result.codes == {"CR906"}
    assert "SIGHUP" in result.report["headline"]
    statements = [s["text"] for f in result.report["findings"] for s in f["statements"]]
    last = [text for text in statements if "was last seen at: first compiled call" in text]
    assert len(last) == 2, "each thread's last step"


def test_killed_from_outside_control_nobody_sends_anything(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"


def test_killed_from_outside_fix_is_to_outlive_the_terminal(in_turn):
    assert in_turn(*HEALTHY).verdict == "clean"
