"""Hugging Face models as targets: a Qwen3 and a Llama made from a config."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest
import safetensors.torch
import torch
from transformers import AutoTokenizer

from dflash_min.config import ModelConfig, TrainConfig
from dflash_min.data import Text
from dflash_min.decoding.speculate import BlockProposer, Decoding
from dflash_min.errors import UsageError
from dflash_min.huggingface import config as hf_config
from dflash_min.huggingface import model as hf
from dflash_min.huggingface.tokens import HfTokens
from dflash_min.model import Drafter
from dflash_min.resolve import resolve
from dflash_min.targets import choice as targets
from dflash_min.trainer import Trainer

from .hf_models import CHAT, byte_tokenizer, llama, named, qwen3, save
from .trainers import SIZES, state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_torch_thread")
KINDS = {"qwen3": qwen3, "llama": llama}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp(request.param), KINDS[request.param]())


def model_config(folder: Path, **settings) -> ModelConfig:
    sizes = hf_config.sizes(named(folder))
    mask = hf_config.mask_token_id(named(folder), sizes.vocab, None)
    return ModelConfig(
        **msgspec.structs.asdict(sizes),
        **{"layers": 2, "block_size": 4, "mask_token_id": mask, **settings},
    )


@pytest.fixture
def target(folder) -> hf.HfTarget:
    return hf.load(named(folder), model_config(folder), "cpu")


def token_ids(rows: int = 2, length: int = 20, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 250, (rows, length), generator=torch.Generator().manual_seed(seed))


def by_transformers(target: hf.HfTarget, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and features as transformers itself gives them."""
    with torch.no_grad():
        output = target._model(input_ids=ids, output_hidden_states=True)
    taps = target.config.taps
    return output.logits, torch.cat([output.hidden_states[tap + 1] for tap in taps], dim=-1)


def test_sizes_are_those_of_the_config(folder):
    wanted = json.loads((folder / "config.json").read_text())
    config = model_config(folder)
    assert config.hidden == 16
    assert (config.heads, config.kv_heads, config.mlp) == (4, 2, 24)
    assert config.head_dim == wanted["head_dim"]
    assert (config.target_layers, config.vocab) == (6, 300)
    assert config.rms_eps == wanted["rms_norm_eps"]
    assert config.rope_theta == wanted["rope_parameters"]["rope_theta"]


def test_features_are_the_tapped_layers_outputs_not_their_neighbours(target):
    ids = token_ids()
    _, wanted = by_transformers(target, ids)
    features = target.features(ids)
    torch.testing.assert_close(features, wanted)
    assert not features.requires_grad
    assert not features.is_inference()


def test_weights_and_features_have_the_drafters_dtype_and_logits_are_wide(folder):
    target = hf.load(named(folder), model_config(folder), "cpu", torch.bfloat16)
    assert target.embed_VD.dtype == target.lm_head_VD.dtype == torch.bfloat16
    assert target.features(token_ids()).dtype == torch.bfloat16
    logits, features = target.extend(token_ids(), target.cache(2))
    assert (logits.dtype, features.dtype) == (torch.float32, torch.bfloat16)


def test_the_head_is_not_run_for_features(target, monkeypatch):
    def run(*_: object, **__: object) -> None:
        raise AssertionError("the head was run")

    monkeypatch.setattr(target._model.get_output_embeddings(), "forward", run)
    target.features(token_ids())


def test_embedding_and_head_are_the_models(target):
    state = target._model.state_dict()
    assert torch.equal(target.embed_VD, state["model.embed_tokens.weight"])
    assert torch.equal(target.lm_head_VD, state["lm_head.weight"])
    tied = target._model.config.tie_word_embeddings
    assert tied == (target.embed_VD.data_ptr() == target.lm_head_VD.data_ptr())
    assert not any(parameter.requires_grad for parameter in target._model.parameters())
    assert not target._model.training


@pytest.mark.parametrize("cuts", [(20,), (7, 8, 5), (1,) * 20])
def test_a_cache_gives_what_the_whole_text_gives(target, cuts):
    ids = token_ids()
    cache, logits, features = target.cache(2), [], []
    for part in ids.split(cuts, dim=1):
        some_logits, some_features = target.extend(part, cache)
        logits.append(some_logits)
        features.append(some_features)
    assert cache.length == 20
    wanted_logits, wanted_features = by_transformers(target, ids)
    torch.testing.assert_close(torch.cat(logits, dim=1), wanted_logits)
    torch.testing.assert_close(torch.cat(features, dim=1), wanted_features)


@pytest.mark.parametrize("kept", [0, 1, 11, 15])
def test_a_cache_that_was_cut_back_forgets(target, kept):
    ids, other = token_ids(), token_ids(seed=1)
    cache = target.cache(2)
    target.extend(torch.cat([ids[:, :kept], other[:, kept:15]], dim=1), cache)
    cache.crop(kept)
    logits, _ = target.extend(ids[:, kept:], cache)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, by_transformers(target, ids)[0][:, kept:])


def test_a_cache_cannot_be_cut_to_what_it_does_not_hold(target):
    cache = target.cache(1)
    target.extend(token_ids(1, 4), cache)
    for length in (-1, 5):
        with pytest.raises(ValueError, match="cannot crop 4 cached tokens"):
            cache.crop(length)


def test_threads_that_share_a_target_get_their_own_features(target):
    batches = [token_ids(seed=seed) for seed in range(2)]
    alone = [target.features(ids) for ids in batches]
    both = threading.Barrier(2, timeout=60)

    def meet(*_: object) -> None:
        both.wait()  # both threads are at the same tapped layer before either goes on

    for tap in target.config.taps:
        target._decoder.layers[tap].register_forward_pre_hook(meet)
    found: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        found[index] = target.features(batches[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        assert torch.equal(found[index], alone[index])


def test_global_random_state_is_left_alone(folder):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    target = hf.load(named(folder), model_config(folder), "cpu")
    target.extend(token_ids(), target.cache(2))
    assert torch.get_rng_state().equal(state)


def test_sizes_that_are_not_the_models_are_refused(folder):
    config = dataclasses.replace(model_config(folder), vocab=301)
    with pytest.raises(UsageError, match=r"embedding is \(300, 16\), its config says \(301, 16\)"):
        hf.load(named(folder), config, "cpu")


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_messages_about_the_weights_have_the_target_as_it_was_given(folder, prefix):
    word = f"{prefix}{folder}"
    config = dataclasses.replace(model_config(folder), vocab=301)
    with pytest.raises(UsageError) as caught:
        targets.open_target(word, config, seed=0, device="cpu")
    wanted = f"--target {word}: the model's embedding is (300, 16), its config says (301, 16)"
    assert str(caught.value) == wanted


def test_a_model_whose_files_lack_weights_is_refused(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    weights = safetensors.torch.load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    safetensors.torch.save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lack 1 weights: model\.layers\.1\.mlp\.up_proj"):
        hf.load(named(copy), model_config(copy), "cpu")


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_a_folder_that_cannot_be_loaded_is_one_line(folder, tmp_path, damage):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = model_config(copy)
    (copy / damage).write_bytes(b"{")
    with pytest.raises(UsageError, match="transformers cannot load it") as caught:
        hf.load(named(copy), config, "cpu")
    assert "\n" not in str(caught.value)


def test_a_model_that_cannot_go_back_cannot_verify(target, monkeypatch):
    monkeypatch.setattr(type(target._model), "_is_stateful", True)
    target.features(token_ids())
    with pytest.raises(UsageError, match="cannot be cut back"):
        target.cache(1)


def training(folder: Path, data: Path, **settings) -> Trainer:
    """Build a small uncompiled trainer that drafts for a model; sizes are the model's."""
    own = ("hidden", "heads", "kv_heads", "head_dim", "mlp")
    run = {name: value for name, value in SIZES.items() if name not in own}
    config = TrainConfig(
        **{
            **run,
            "warmup": "none",
            "threads": 2,
            "steps": 2,
            "data": (data,),
            "target": f"hf:{folder}",
            **settings,
        }
    )
    trainer = Trainer(resolve(config, gpus=0))
    for replica in trainer.replicas:
        replica.forward = replica.forward_dense
    return trainer


def test_a_drafter_is_trained_for_it(folder, tmp_path):
    data = tmp_path / "prose.txt"
    data.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    trainer = training(folder, data, steps=12, lr=0.02, lr_warmup=0.0, eval_batches=1)
    assert trainer.resolved.model == model_config(folder)
    ids, learned = trainer.text.batch(0, 64, 1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(ids[0]) in data.read_text()
    assert learned.all()
    losses = []
    summary = trainer.run(lambda report: losses.append(report.loss))
    assert losses[0] > 5.4  # no better than a guess among 300: log(300) = 5.7
    assert summary.loss < losses[0] - 0.5
    assert summary.held_out_loss < losses[0] - 0.5
    assert state(trainer.replicas[0].drafter) == state(trainer.replicas[1].drafter)


def test_only_what_the_assistant_says_is_trained_on(folder, tmp_path):
    messages = [{"role": role, "content": content} for role, content in CHAT]
    data = tmp_path / "chat.jsonl"
    data.write_text(json.dumps({"messages": messages}) + "\n")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    tokens = HfTokens.load(named(folder), vocab=300, mask_token_id=259)
    length = len(tokens.encode(whole))
    text = Text.load([data], seed=0, longest=length, tokens=tokens)
    ids, learned = text.batch(0, length, 1)
    assert tokenizer.decode(ids[0]) == whole
    assert tokenizer.decode(ids[learned]) == "fóur<|im_end|><think>\n\n</think>\n\nyes<|im_end|>"


def test_a_conversation_that_the_template_refuses_is_named_by_its_line(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('first comes the user') }}"
    tokens = HfTokens(tokenizer, named("tiny"), vocab=300, mask_token_id=259)
    data = tmp_path / "chat.jsonl"
    row = {"messages": [{"role": "assistant", "content": "yes"}]}
    data.write_text("\n" + json.dumps(row))
    with pytest.raises(UsageError, match=r"chat\.jsonl:2: .*first comes the user") as caught:
        Text.load([data], seed=0, longest=8, tokens=tokens)
    assert "\n" not in str(caught.value)


def test_speculative_text_is_what_transformers_generates(target):
    prompt = token_ids(1, 12)
    drafter = Drafter(target.config, seed=1)
    wanted = target._model.generate(
        prompt, do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0
    )[0, 12:].tolist()
    decoding = Decoding(target, BlockProposer(drafter, target), prompt[0].tolist(), 20)
    assert decoding.run() == wanted
