"""A small regression with Lightning: `pip install torchshare[frameworks]`."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch, _index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="lightning.pt")
    args = parser.parse_args()
    lightning.seed_everything(args.seed, workers=True)
    data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    model = Regression()
    trainer.fit(model, DataLoader(data, 16, shuffle=True, num_workers=1))
    torch.save(model.state_dict(), args.checkpoint)
