"""The sizes that a step is measured at, and how many floating-point operations it is of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a drafter and of what it is measured on, and the grid of its table."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    layers: int
    target_layers: int
    vocab: int
    mask_token_id: int
    block_size: int
    anchors: int
    lengths: tuple[int, ...]
    """Context lengths of the main figures."""
    grid_lengths: tuple[int, ...]
    grid_anchors: tuple[int, ...]
    chunks: tuple[int, ...]
    """Slots in a chunk of the loss, to be compared."""


SHAPES = {
    "qwen3-4b": Shape(
        name="qwen3-4b",
        hidden=2560,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=9728,
        layers=5,
        target_layers=36,
        vocab=151936,
        mask_token_id=151669,
        block_size=16,
        anchors=512,
        lengths=(3072, 8192),
        grid_lengths=(512, 1024, 2048, 3072, 4096, 8192),
        grid_anchors=(512, 256, 128, 64),
        chunks=(1024, 2048, 4096, 8192),
    ),
    "tiny": Shape(
        name="tiny",
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp=128,
        layers=2,
        target_layers=6,
        vocab=512,
        mask_token_id=511,
        block_size=8,
        anchors=16,
        lengths=(256, 384),
        grid_lengths=(256, 512),
        grid_anchors=(16, 8),
        chunks=(32, 64),
    ),
}


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one forward, a multiply and an add counted as two."""

    dense: int
    """Products of the slots with the layers' weights."""
    context: int
    """Keys and values of the context, in every layer."""
    fusion: int
    """The projection of the features."""
    head: int
    attention: int
    """Scores and sums over the pairs that are seen, for anchors uniform over the context."""

    @property
    def step(self) -> int:
        """Of forward and backward: the features and the head need no gradient."""
        return 3 * (self.dense + self.context + self.attention) + 2 * (self.fusion + self.head)


def operations(shape: Shape, length: int, anchors: int) -> Operations:
    """Count the operations of a sequence of `length` tokens and so many anchors."""
    slots = anchors * shape.block_size
    width = shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    kv = 2 * shape.hidden * kv_width
    layer = 2 * shape.hidden * width + kv + 3 * shape.hidden * shape.mlp
    pairs = slots * (length // 2 + shape.block_size)
    return Operations(
        dense=2 * slots * shape.layers * layer,
        context=2 * length * shape.layers * kv,
        fusion=2 * length * shape.layers * shape.hidden * shape.hidden,
        head=2 * slots * shape.hidden * shape.vocab,
        attention=4 * pairs * width * shape.layers,
    )
