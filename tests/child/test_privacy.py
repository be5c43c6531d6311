"""What is masked before anything is written, and what a diagnosis is made of and must stay."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.child.privacy import MASK, mask, mask_argv, mask_environment

RECORDINGS = Path(__file__).parents[1] / "recordings"

# Made up, in the shapes that their issuers document.
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
SECRETS = {
    "401 for {}": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "key sk-proj rejected: {}": "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl",
    "old key {}.": "sk-Ab12Cd34Ef56Gh78Ij90Kl12",
    "push with {} failed": "ghp_0123456789abcdefABCDEF0123456789abcd",
    "fine-grained {}": "github_pat_11ABCDEFG0123456789_abcdefghij",
    "credentials ({})": "AKIAIOSFODNN7EXAMPLE",
    "slack {}": "xoxb-123456789012-abcdefghijkl",
    "expired: {}": JWT,
    "cannot clone https://ada:{}@example.org/x.git": "pa55word",
    "redis://:{}@localhost:6379/0": "pa55word",
    "https://{}@example.org/x.git": "0123456789abcdef0123456789abcdef",
    "{{'Authorization': 'Bearer {}'}}": "abc.def-1234",
    "Authorization: Basic {}": "YWRhOmxvdmVsYWNl",
    "authorization={}": "0123456789abcdef",
    "sent bearer {}": "abcdef0123456789",
    "HF_TOKEN={} python train.py": "abc123def456",
    "WANDB_API_KEY={}": "local-1",
    "password={}": "hunter2",
    "password: '{}'": "correct horse battery",
    '{{"db_password": "{}"}}': "hunter2",
    '{{\\"api_key\\": \\"{}\\"}}': "abc",
    "connect(user='ada', passwd='{}')": "1815",
    "GET /x?access_token={}&page=2": "abc123xyz",
    "train.py --api-key {} --steps 3": "local1",
    "train.py --token={} --steps 3": "abcdef12",
    "train.py --password '{}'": "hunter2",
    "AWS_SECRET_ACCESS_KEY: {}": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----": "MIIEpAIBAAKCAQEA",
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_is_masked_and_the_rest_stays(text, secret) -> None:
    masked = mask(text.format(secret))
    assert secret not in masked
    assert MASK in masked
    before = text.format("\0").split("\0")[0]
    if "BEGIN" not in text:
        assert masked.startswith(before)


# As torch 2.11 to 2.14 word them, and what else a report is made of.
KEPT = [
    "0/0: GLOBAL_STATE changed: grad_mode ",
    "0/1: tensor 'query' size mismatch at index 2. expected 128, actual 160",
    "0/0: tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, BackendSelect)",
    "0/0: L['token'] == 5",
    "0/0: L['self'].token_embedding.weight.requires_grad == True",
    "1/2: str(L['kwargs']['mask_token']) == '[MASK]'",
    "___check_obj_id(L['config'].secret, 139872345)",
    "KeyError: 'custom'",
    "KeyError: 'HF_TOKEN'",
    "HASATTR guard on `G['torch'].compiler.set_stance`",
    "TypeError: forward() got an unexpected keyword argument 'token'",
    "mask_token_id=256, pad_token=257, vocab=264, max_new_tokens=128",
    "bos_token='<s>' eos_token='</s>' pad_token='[PAD]' unk_token=unknown_0001",
    "next_token: s77 + 12, last_token=Tensor0001",
    "tokens: 8192, token: f32[1, 8192], token=tensor([1, 2])",
    "def forward(self, token: LongTensor, auth: Int64Tensor) -> Tensor:",
    "token: drafter-0",
    "token=0x7f8a12345678",
    "fx_graph_cache_key: f3abc123abc123abc123abc123",
    "cache_key=fxabcdef0123456789",
    "sort_key=lambda x: x",
    "commit 5e1c44d9a51f9d2c79ac0a3de17c8a3f9a0b1c2d",
    "dispatch_key=AutogradCUDA",
    "{'password': None, 'token': None}",
    "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has 139.00 GiB",
    "https://github.com/pytorch/pytorch/issues/123456",
    "file:///tmp/x.py:12: UserWarning",
    "PWD=/home/ada/project",
    "thread drafter-0: FX-tracing flag",
    "--warmup no_grad --seed 0 --mask-token 256",
    "shape: [1, 8, 128, 16]; stride=(16384, 2048, 16, 1)",
    "task-0123456789abcdef0123 and disk-0123456789abcdef0123",
    "the authorization: denied; the bearer of it; basic block",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_a_diagnosis_is_made_of_is_not_touched(text) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    "path", sorted(RECORDINGS.glob("*/events.jsonl")), ids=lambda path: path.parent.name
)
def test_no_text_of_a_real_recording_is_touched(path) -> None:
    def texts(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from texts(item)

    seen = 0
    for line in path.read_text().splitlines():
        assert mask(line) == line
        for text in texts(json.loads(line)):
            seen += 1
            assert mask(text) == text
    assert seen > 50


def test_the_word_after_a_flag_is_masked_in_a_command_line() -> None:
    words = ["python", "t.py", "--token", "abc", "--api-key", "--x", "y", "--mask-token", "abc"]
    words += ["--hf-token=secret12", "GIT_TOKEN=abcdef12", "--password", "5"]
    assert mask_argv(words) == [
        *("python", "t.py", "--token", MASK, "--api-key", "--x", "y", "--mask-token", "abc"),
        *(f"--hf-token={MASK}", f"GIT_TOKEN={MASK}", "--password", MASK),
    ]


def test_environment_values_are_masked_by_name_or_by_shape() -> None:
    assert mask_environment(
        {
            "TORCH_HUB_TOKEN": "short",
            "PYTHONPATH": "/home/ada/src",
            "TORCH_LOGS": "recompiles",
            "NCCL_URL": "tcp://ada:pw@10.0.0.1:1",
            "TORCH_TOKENIZERS": "4",
            "CUDA_API_KEY": "",
        }
    ) == {
        "TORCH_HUB_TOKEN": MASK,
        "PYTHONPATH": "/home/ada/src",
        "TORCH_LOGS": "recompiles",
        "NCCL_URL": f"tcp://ada:{MASK}@10.0.0.1:1",
        "TORCH_TOKENIZERS": "4",
        "CUDA_API_KEY": "",
    }


@given(st.lists(st.sampled_from([*SECRETS.values(), *KEPT, *" =:'\"\\&@\n", "token", "pw"])))
@example(["password=", "***"])
def test_masking_twice_is_masking_once(parts) -> None:
    once = mask(" ".join(parts))
    assert mask(once) == once


@pytest.mark.parametrize(
    "text", ["token" * 40_000, "a." * 100_000, "x_" * 100_000, "://" * 60_000, "Bearer " * 30_000]
)
def test_a_long_text_does_not_take_long(text) -> None:
    # Linear: some 0.1 s here, of this thread's own time; what grows with the square would take
    # minutes.
    began = time.thread_time()
    mask(text)
    assert time.thread_time() - began < 5
