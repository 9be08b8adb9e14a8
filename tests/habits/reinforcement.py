"""As cleanrl trains: three seeds, `cudnn.deterministic`, an environment of its own and no loader."""

import csv
import os
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    seed: int = 1
    torch_deterministic: bool = True
    iterations: int = 4
    num_steps: int = 32
    minibatch_size: int = 16


class Track:
    """Keep a point near the middle; the wind blows at random."""

    def reset(self):
        self.at, self.speed, self.left = np.random.uniform(-0.5, 0.5), 0.0, random.randint(20, 40)
        return np.array([self.at, self.speed], dtype=np.float32)

    def step(self, action):
        self.speed += (0.1 if action else -0.1) + np.random.normal(scale=0.02)
        self.at += self.speed
        self.left -= 1
        return np.array([self.at, self.speed], dtype=np.float32), 1.0 - abs(self.at), self.left == 0 or abs(self.at) > 2


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


if __name__ == "__main__":
    args = Args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    os.makedirs(f"runs/{args.exp_name}", exist_ok=True)
    writer = csv.writer(open(f"runs/{args.exp_name}/scalars.csv", "w"))

    env = Track()
    actor = nn.Sequential(layer_init(nn.Linear(2, 32)), nn.Tanh(), layer_init(nn.Linear(32, 2), std=0.01))
    optimizer = optim.Adam(actor.parameters(), lr=2.5e-3, eps=1e-5)
    next_obs = torch.Tensor(env.reset())
    for iteration in range(args.iterations):
        obs, actions, rewards = torch.zeros((args.num_steps, 2)), torch.zeros(args.num_steps), []
        for step in range(args.num_steps):
            obs[step] = next_obs
            with torch.no_grad():
                actions[step] = Categorical(logits=actor(next_obs)).sample()
            state, reward, done = env.step(int(actions[step]))
            rewards.append(reward)
            next_obs = torch.Tensor(env.reset() if done else state)
        returns = torch.tensor(np.cumsum(rewards[::-1])[::-1].copy(), dtype=torch.float32)
        b_inds = np.arange(args.num_steps)
        np.random.shuffle(b_inds)
        for start in range(0, args.num_steps, args.minibatch_size):
            mb = b_inds[start : start + args.minibatch_size]
            advantage = (returns[mb] - returns[mb].mean()) / (returns[mb].std() + 1e-8)
            loss = -(Categorical(logits=actor(obs[mb])).log_prob(actions[mb]) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
        writer.writerow([iteration, sum(rewards), loss.item(), random.random()])
    torch.save(actor.state_dict(), f"runs/{args.exp_name}/{args.exp_name}.cleanrl_model")
