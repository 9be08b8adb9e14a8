"""A Trainer with callbacks, validation and checkpoints; the two lines for sub-batches are called once per epoch."""

import dataclasses
import json
import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchshare

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainingArguments:
    output_dir: str = "trainer_output"
    num_train_epochs: int = 3
    per_device_train_batch_size: int = 16
    learning_rate: float = 5e-3
    max_grad_norm: float = 1.0
    logging_steps: int = 2
    seed: int = 42


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.log_history, self.global_step = [], 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + 0.1 * step))

    def log(self, values):
        self.log_history.append({**values, "step": self.global_step})
        logger.info("%s", self.log_history[-1])

    def train(self):
        loader = DataLoader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True)
        for epoch in range(self.args.num_train_epochs):
            optimizer = torchshare.accumulate(self.optimizer)
            self.model.train()
            for x, y in torchshare.batches(loader):
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                optimizer.step()
                self.lr_scheduler.step()
                optimizer.zero_grad()
                self.global_step += 1
                if self.global_step % self.args.logging_steps == 0:
                    self.log({"loss": loss.item(), "learning_rate": self.lr_scheduler.get_last_lr()[0]})
            self.log({"eval_loss": self.evaluate(), "epoch": epoch})
            folder = os.path.join(self.args.output_dir, f"checkpoint-{self.global_step}")
            os.makedirs(folder, exist_ok=True)
            torch.save(self.model.state_dict(), os.path.join(folder, "pytorch_model.bin"))
            with open(os.path.join(folder, "trainer_state.json"), "w") as file:
                json.dump({"log_history": self.log_history, "args": dataclasses.asdict(self.args)}, file)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        loader = torchshare.batches(DataLoader(self.eval_dataset, 8))
        return sum(nn.functional.cross_entropy(self.model(x), y, reduction="sum").item() for x, y in loader) / 24


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, filename="trainer.log", format="%(name)s %(levelname)s %(message)s")
    arguments = TrainingArguments()
    torch.manual_seed(arguments.seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
    data = TensorDataset(torch.randn(72, 10), torch.randint(0, 4, (72,)))
    parts = [torch.utils.data.Subset(data, indices) for indices in (range(48), range(48, 72))]
    Trainer(net, arguments, *parts).train()
