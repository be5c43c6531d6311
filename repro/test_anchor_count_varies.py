"""CR202: the mask function closes over the anchors, and their number changes with the length.

Where dynamo made that size symbolic (warmed at two counts, or ``dynamic=True`` on a torch that
marks captured tensors dynamic) nothing misses, and the run is clean.
"""

VARYING = ("--threads", "3", "--warmup", "grad", "--anchors", "vary", "--dynamic", "true")


def test_anchor_count_varies_after_one_warmup_length(train, short_length):
    result = train(*VARYING, "--warmup-lens", short_length)
    if result.count("compiles_after_warmup") == 0:
        assert result.verdict == "clean"
        return
    assert result.verdict == "found"
    assert "CR202" in result.roots
    assert result.codes <= {"CR201", "CR202", "CR301", "CR303", "CR310", "CR901"}


def test_anchor_count_varies_fix_is_a_fixed_count(train):
    result = train("--threads", "3", "--warmup", "grad", "--dynamic", "true")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
