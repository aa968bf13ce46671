"""Real training with Lightning: fit with validation, test, predict. train_lightning.py BASE"""

from __future__ import annotations

import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from monitor.capture.lightning import CaptureCallback

warnings.simplefilter("ignore")


def in_forward() -> None: ...


def in_optimizer() -> None: ...


class Regression(lightning.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        in_forward()
        in_forward()
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, number):
        in_forward()
        self.log("loss", self.layer(batch[0]).pow(2).mean())

    test_step = validation_step

    def predict_step(self, batch, number):
        in_forward()
        return self.layer(batch[0])

    def on_before_optimizer_step(self, optimizer) -> None:
        in_optimizer()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(base: str) -> None:
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=4)
    callback = CaptureCallback(base, node="0-test", overhead_share=0)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[callback],
    )
    model = Regression()
    trainer.fit(model, loader, loader)
    trainer.test(model, loader, verbose=False)
    trainer.predict(model, loader)
    callback.capture.close()


main(sys.argv[1])
