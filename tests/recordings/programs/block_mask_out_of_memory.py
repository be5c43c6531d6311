"""A thread builds a block mask over 16,384 tokens, all of it first; for a cap of 1 GiB."""

import threading

from torch.nn.attention.flex_attention import create_block_mask


def build():
    create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 16384, 16384, device="cpu")


thread = threading.Thread(target=build, name="worker-0")
thread.start()
thread.join()
