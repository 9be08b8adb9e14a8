"""Learns a text by heart, character by character. All of it is module-level code."""

import argparse
import logging
import random

import torch
from data import ALPHABET, IDS
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--checkpoint", default="text.pt")
args = parser.parse_args()

random.seed(1)
torch.manual_seed(1)


class Speller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.spell = nn.Linear(48, len(ALPHABET))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.spell(self.dropout(self.gru(self.embed(ids))[0]))


model = Speller()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
for step in range(args.steps):
    begins = [random.randrange(len(IDS) - args.length) for _ in range(16)]
    windows = torch.stack([IDS[begin : begin + args.length + 1] for begin in begins])
    logits = model(windows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if step % 50 == 0:
        logging.info("step %d: loss %.4f", step, loss.item())
torch.save(model.state_dict(), args.checkpoint)
