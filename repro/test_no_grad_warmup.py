"""CR101: warmed with gradients off, trained with gradients on. The incident's first cause."""


def test_no_grad_warmup_fails(train):
    result = train("--threads", "3", "--warmup", "no_grad")
    assert result.verdict == "found"
    assert result.exit_code == 1
    assert result.roots == {"CR101"}
    assert result.own_codes == {"CR101"}
    assert result.count("compiles_after_warmup") >= 1


def test_no_grad_warmup_control_one_thread_that_compiles_for_itself_is_healthy(train):
    result = train("--threads", "1", "--warmup", "none")
    assert result.verdict == "clean"


def test_no_grad_warmup_fix_is_to_warm_with_gradients_and_backward_at_two_lengths(train):
    result = train("--threads", "3", "--warmup", "grad")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
    assert result.count("fallbacks") == 0
