import torch
from torch.nn.attention.flex_attention import flex_attention

with torch.no_grad():
    flex_attention(*[torch.randn(1, 2, 64, 16) for _ in range(3)])
print("done")
