"""A tiny GPT-2 with the Trainer of transformers: `pip install torchshare[frameworks]`. Nothing is downloaded."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Sequences(Dataset):
    """Numbers that count up from a random one."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin = torch.randint(0, 64, (), generator=torch.Generator().manual_seed(index))
        ids = (begin + torch.arange(16)) % 64
        return {"input_ids": ids, "labels": ids}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="transformers.pt")
    args = parser.parse_args()
    set_seed(args.seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=f"{args.checkpoint}.trainer",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        logging_steps=8,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=args.seed,
    )
    Trainer(model, arguments, train_dataset=Sequences()).train()
    torch.save(model.state_dict(), args.checkpoint)
