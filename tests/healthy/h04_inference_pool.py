"""An inference pool whose threads set the mode in which the model was warmed."""

from concurrent.futures import ThreadPoolExecutor

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 2)).eval()
compiled = torch.compile(model, backend="aot_eager")


def answer(request):
    with torch.inference_mode():
        return compiled(request).argmax(-1).tolist()


answer(torch.randn(4, 8))
with ThreadPoolExecutor(4) as pool:
    print(len(list(pool.map(answer, [torch.randn(4, 8) for _ in range(40)]))))
