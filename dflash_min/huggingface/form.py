"""The form of a Hugging Face folder: its files, and by which keys its config has a model's sizes.

The built-in target and drafters are saved in it, and targets and published drafters are read from
it. A drafter's config has the drafter's own layers where a target's has the target's.
"""

from __future__ import annotations

from typing import Final

CONFIG_FILE: Final = "config.json"
WEIGHTS_FILE: Final = "model.safetensors"
DRAFTER_CONFIG: Final = "dflash_config"
"""A key of config.json that drafters have and targets do not."""

_SHARED: Final = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp": "intermediate_size",
    "vocab": "vocab_size",
    "rms_eps": "rms_norm_eps",
}
TARGET_KEYS: Final = {**_SHARED, "target_layers": "num_hidden_layers"}
"""Fields of `ModelConfig` and the keys of Qwen3's config, for a target."""
DRAFTER_KEYS: Final = {
    **_SHARED,
    "layers": "num_hidden_layers",
    "target_layers": "num_target_layers",
    "block_size": "block_size",
}
"""The same for a drafter, as z-lab's published ones have them."""
