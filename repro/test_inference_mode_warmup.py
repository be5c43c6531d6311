"""CR102: warmed under ``torch.inference_mode``, trained outside it."""


def test_inference_mode_warmup_fails(train):
    result = train("--threads", "3", "--warmup", "inference_mode")
    assert result.verdict == "found"
    assert result.roots == {"CR102"}
    assert result.own_codes == {"CR102"}
