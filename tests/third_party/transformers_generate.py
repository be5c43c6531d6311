"""Three streams of tokens at a time: transformers' generate in threads, one first to warm up."""

import threading

import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed
from transformers.generation.streamers import BaseStreamer

set_seed(0)
config = GPT2Config(
    n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=32, bos_token_id=0, eos_token_id=None
)
model = GPT2LMHeadModel(config).eval()
model.transformer.h[0].mlp.compile(backend="aot_eager", dynamic=True)


class Kept(BaseStreamer):
    def __init__(self):
        self.tokens, self.done = [], threading.Event()

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.done.set()


def stream(start):
    kept = Kept()
    prompt = torch.tensor([[start]])  # as long as a step: one cache entry serves all calls
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "streamer": kept}
    thread = threading.Thread(target=model.generate, args=(prompt,), kwargs=options)
    thread.start()
    return kept, thread


first, thread = stream(1)
thread.join()
running = [stream(start) for start in (1, 2, 3)]
for kept, thread in running:
    thread.join()
    print(kept.done.is_set(), kept.tokens)
print(first.tokens == running[0][0].tokens)
