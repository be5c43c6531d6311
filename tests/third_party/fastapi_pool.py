"""A FastAPI server whose synchronous endpoint runs compiled code in anyio's worker threads."""

import asyncio
import contextlib

import httpx
import torch
from fastapi import FastAPI

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
compiled = torch.compile(model, backend="aot_eager")


@contextlib.asynccontextmanager
async def warm(_app):
    await asyncio.to_thread(predict, "0,0,0,0")
    yield


app = FastAPI(lifespan=warm)


@app.get("/predict")
def predict(x: str):
    with torch.inference_mode():
        row = torch.tensor([[float(word) for word in x.split(",")]])
        return {"label": compiled(row).argmax().item()}


async def main():
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        asked = [client.get("/predict", params={"x": f"{n},1,2,3"}) for n in range(24)]
        answers = await asyncio.gather(*asked)
        broken = await client.get("/predict")
    print(sum(answer.status_code == 200 for answer in answers), broken.status_code)
    print([answer.json()["label"] for answer in answers])


asyncio.run(main())
