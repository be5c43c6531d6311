"""CR208: no warm-up at all, so the first call of every thread meets an empty cache."""


def test_no_warmup_fails(train):
    result = train("--threads", "3", "--warmup", "none")
    assert result.verdict == "found"
    assert result.roots == {"CR208"}
    assert result.own_codes <= {"CR207", "CR208"}
