"""The pieces of a step that `--preset fast` replaces, each equal to what it stands in for.

    mask       `mask.block_mask`: the tiles of the block mask by arithmetic on the anchors
    layers     `layers.FusedDrafter`: one compiled graph for every decoder layer
    loss       `loss.fused_loss`: head and cross-entropy, differentiated where they are computed
    optimizer  `adamw.FusedAdamW`: clipping, AdamW and the cast to bfloat16 in one pass

Kernels in Triton are in `kernels`, which is imported where there are tensors on a GPU.
"""
