"""Lightning's Trainer on a compiled module, with a DataLoader and a validation loop."""

import logging
import warnings

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
lightning.seed_everything(0, verbose=False)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        x, y = batch
        return (self.net(x) - y).square().mean()

    def validation_step(self, batch):
        print(f"validation {self.training_step(batch).item():.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


rows = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(torch.compile(Net(), backend="aot_eager"), rows, rows)
print(f"steps {trainer.global_step}")
