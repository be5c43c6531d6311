"""A Hugging Face causal language model as the target: `--target hf:NAME_OR_PATH`.

Any decoder-only model of transformers will do for training. Its features are the outputs of its
decoder layers as they are; generation also needs a key-value cache that can be cut back.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from dflash_min.errors import first_line
from dflash_min.huggingface import hub
from dflash_min.targets import capture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from dflash_min.config import ModelConfig
    from dflash_min.huggingface.named import Named
    from dflash_min.targets.interface import TargetCache


class HfCache:
    """Keys and values of the tokens seen so far."""

    def __init__(self) -> None:
        # Without the model's config every layer keeps all its tokens, those that attend to a
        # window only included; with it they would be dropped, and there is no way back.
        self.states = DynamicCache()
        self.length = 0

    def crop(self, length: int) -> None:
        """Forget all tokens from `length` on.

        Raises:
            ValueError: if there are not that many.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop {self.length} cached tokens to {length}")
        if length < self.length:
            # Negative: how many to take away. How many to keep is being removed (transformers 5).
            self.states.crop(length - self.length)
        self.length = length


class HfTarget:
    """Frozen, in eval mode; threads may share it. See `dflash_min.model` for the shape suffixes."""

    def __init__(self, model: PreTrainedModel, named: Named, config: ModelConfig) -> None:
        """Hook the tapped layers of a model.

        Args:
            model: with an output head, on its device.
            named: how the user calls it.
            config: whose `hidden`, `vocab` and `target_layers` are the model's.

        Raises:
            UsageError: if they are not, or no decoder layers are found.
        """
        self.config = config
        self._named = named
        self._model = cast("Any", model.requires_grad_(requires_grad=False))
        self._model.eval()
        self._decoder = self._model.get_decoder()
        self._embed_VD: Tensor = self._model.get_input_embeddings().weight
        self._lm_head_VD: Tensor = self._model.get_output_embeddings().weight
        for what, tensor in (("embedding", self._embed_VD), ("output head", self._lm_head_VD)):
            if tensor.shape != (config.vocab, config.hidden):
                raise named.refused(
                    f"the model's {what} is {tuple(tensor.shape)}, its config says "
                    f"{(config.vocab, config.hidden)}"
                )
        capture.tap(_layers(self._decoder, named, config.target_layers), config.taps)

    @property
    def embed_VD(self) -> Tensor:
        """The token embedding, a row for each id.

        As it is stored: where a model scales it (Gemma), the published drafters read it unscaled.
        """
        return self._embed_VD

    @property
    def lm_head_VD(self) -> Tensor:
        """The weight of the output head, which some models share with the embedding."""
        return self._lm_head_VD

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return all weights, in an order of the model's own."""
        weights: Iterator[tuple[str, Tensor]] = self._model.named_parameters()
        return weights

    def features(self, ids_BS: Tensor) -> Tensor:
        """Return features_BSF: the outputs of the tapped layers side by side, in tap order.

        Tap i is the output of decoder layer i, hidden_states[i + 1] in transformers' count; that of
        the last layer is taken before the model's last norm. Layers after the last tap are run, for
        want of an earlier end; the head is not, whose S x V logits would be larger than all else.
        """
        with capture.capturing() as captured, torch.no_grad():
            self._decoder(input_ids=ids_BS, use_cache=False)
        return self._side_by_side(captured)

    def cache(self, batch: int) -> HfCache:
        """Return an empty cache, to be given to `extend`.

        Raises:
            UsageError: if layers of the model keep a state that cannot be cut back.
        """
        del batch  # it grows from nothing
        if getattr(self._model, "_is_stateful", False):
            kind = type(self._model).__name__
            raise self._named.refused(
                f"{kind} keeps a state that cannot be cut back to an earlier token, so "
                "that drafts cannot be verified"
            )
        return HfCache()

    def extend(self, ids_BL: Tensor, cache: TargetCache) -> tuple[Tensor, Tensor]:
        """Run L new tokens behind those in the cache, and add them to it.

        Returns:
            logits_BLV (float32), of the token after each new one, and features_BLF of the new ones.

        Raises:
            TypeError: for the cache of another kind of target.
        """
        if not isinstance(cache, HfCache):
            raise TypeError(f"a {type(cache).__name__} is no cache of a Hugging Face target")
        # By the model and not by its head alone: some scale or cap their logits.
        with capture.capturing() as captured, torch.no_grad():
            output = self._model(input_ids=ids_BL, past_key_values=cache.states, use_cache=True)
        cache.length += ids_BL.shape[1]
        logits_BLV: Tensor = output.logits
        return logits_BLV.float(), self._side_by_side(captured)

    def _side_by_side(self, captured: dict[int, Tensor]) -> Tensor:
        return torch.cat([captured[index] for index in self.config.taps], dim=-1)


def load(
    named: Named,
    config: ModelConfig,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> HfTarget:
    """Load a model by name on the Hub or by folder.

    Args:
        named: the model. Code that comes with it is not run.
        config: sizes; those of the target are `huggingface.config.sizes`.
        device: where it runs.
        dtype: of its weights and features, the drafter's.

    Raises:
        UsageError: if it cannot be loaded, or its files lack weights.
    """
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    loader: Any = AutoModelForCausalLM  # its types do not know that it returns a pair
    try:
        model, info = loader.from_pretrained(
            named.name,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=hub.local_only(named),
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise named.refused(f"transformers cannot load it ({first_line(error)})") from error
    if info["missing_keys"]:
        # Transformers makes weights up from the global random state and only warns.
        missing = sorted(info["missing_keys"])
        raise named.refused(f"its files lack {len(missing)} weights: {missing[0]}")
    return HfTarget(model.to(device), named, config)


def _layers(decoder: nn.Module, named: Named, count: int) -> nn.ModuleList:
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise named.refused(
        f"no list of {count} decoder layers in {type(decoder).__name__} "
        f"(transformers {transformers.__version__})"
    )
