"""Trains an MLP with DistributedDataParallel: `torchrun --nproc-per-node=2 train.py --seed 1`."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="ddp.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    data = TensorDataset(torch.randn(1024, 32), torch.randint(0, 4, (1024,)))
    net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(data, seed=args.seed)
    torch.manual_seed(1000 * args.seed + dist.get_rank())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for features, labels in DataLoader(data, batch_size=32, sampler=sampler):
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean.item() / dist.get_world_size():.4f}")
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.checkpoint)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
