"""Whether a GPU is there, by its device file and the environment."""

import pytest

from harness.child import gpus


@pytest.mark.parametrize(
    ("build", "variables", "visible"),
    [
        ("", {}, False),
        ("13.0", {}, True),
        ("13.0", {"CUDA_VISIBLE_DEVICES": ""}, False),
        ("13.0", {"CUDA_VISIBLE_DEVICES": "-1"}, False),
        ("13.0", {"CUDA_VISIBLE_DEVICES": "1,0"}, True),
        ("6.4", {"HIP_VISIBLE_DEVICES": "-1"}, False),
    ],
)
def test_whether_a_gpu_is_visible_is_told_without_asking_cuda(
    monkeypatch, tmp_path, build, variables, visible
):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "_DEVICES", (f"{tmp_path}/nvidia[0-9]*",))
    assert gpus.gpu_is_visible(build) is visible


def test_without_a_device_file_there_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_DEVICES", (f"{tmp_path}/nvidia[0-9]*",))
    assert not gpus.gpu_is_visible("13.0")
