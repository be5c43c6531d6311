"""From text to tokens accepted: a target and a drafter that know a tiny text by heart."""

from __future__ import annotations

import pytest

from dflash_min import pretrain
from dflash_min.decoding.speculate import BlockProposer, Decoding, Nothing
from tests.dflash_min.trainers import small_dense

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SIZES = {"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp": 64}
LINE = "the quick brown fox\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(LINE * 1000)
    return path


@pytest.fixture(scope="module")
def target(data):
    out = data.parent / "target"
    words = [f"--{name.replace('_', '-')}={size}" for name, size in SIZES.items()]
    pretrain.main([
        *("--device=cpu", f"--data={data}", f"--out={out}", "--steps=40", "--lr=1e-2"),
        *("--target-layers=5", "--seq-len=256", "--batch-size=2", "--threads=1"),
        *("--eval-batches=1", *words),
    ])  # fmt: skip
    return out


def test_a_tiny_text_learned_by_heart_is_accepted_nearly_whole(target, data) -> None:
    """Under teacher forcing and in real generation, which a wrong feature would set apart."""
    # Blocks at a window's end are cut short, and those at its beginning have nothing to go by:
    # long windows have few of either.
    settings = {"seq_lens": (256,), "block_size": 4, "anchors": 48, "steps": 110, "lr": 1.5e-2}
    names = {**dict.fromkeys(SIZES), "target": str(target), "data": (data,)}
    trainer = small_dense(threads=1, eval_batches=8, **settings, **names)
    summary = trainer.run(lambda report: None)
    assert 0.95 * 4 <= summary.held_out_accept_len <= 4
    model, drafter = trainer.targets[0], trainer.replicas[0].drafter
    prompt = list((LINE * 2)[:33].encode())
    decoding = Decoding(model, BlockProposer(drafter, model), prompt, 70)
    assert decoding.run() == Decoding(model, Nothing(), prompt, 70).run()
    assert bytes(decoding.tokens).decode() == (LINE * 6)[33 : 33 + 70]
    assert 0.95 * 4 <= decoding.tau <= 4
