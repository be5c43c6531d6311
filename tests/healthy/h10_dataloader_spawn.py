"""A DataLoader whose workers are spawned, with a collate function of the program's own."""

import torch
from torch.utils.data import DataLoader


def collate(rows):
    return torch.stack([torch.full((4,), float(row)) for row in rows])


def main():
    compiled = torch.compile(torch.nn.Linear(4, 1), backend="aot_eager")
    loader = DataLoader(
        range(16), batch_size=4, num_workers=1, collate_fn=collate, multiprocessing_context="spawn"
    )
    for batch in loader:
        compiled(batch).sum().backward()


if __name__ == "__main__":
    main()
