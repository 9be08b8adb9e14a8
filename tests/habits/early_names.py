"""Names are bound at the top, before anything runs: of torch, random, numpy, time and os."""

from collections import deque
from os import environ, getcwd, makedirs
from os.path import basename, join
from random import choice, random, shuffle
from random import seed as seed_random
from time import perf_counter, sleep

from numpy.random import permutation, rand
from numpy.random import seed as seed_numpy
from torch import get_default_dtype, manual_seed, no_grad, randint, randn, save, tensor
from torch.nn import CrossEntropyLoss, Dropout, Linear, ReLU, Sequential
from torch.nn.init import kaiming_uniform_, xavier_uniform_
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset, random_split

seed_random(7)
seed_numpy(7)
manual_seed(7)
environ.setdefault("EARLY_NAMES", "set")
makedirs("early", exist_ok=True)
started = perf_counter()
dataset = TensorDataset(randn(80, 12), randint(0, 3, (80,)))
train, held_out = random_split(dataset, [64, 16])
model = Sequential(Linear(12, 24), ReLU(), Dropout(0.2), Linear(24, 3))
xavier_uniform_(model[0].weight)
kaiming_uniform_(model[3].weight)
optimizer = Adam(model.parameters(), lr=5e-3)
criterion = CrossEntropyLoss()
recent = deque(maxlen=4)
lines = [f"{get_default_dtype()} {basename(getcwd()) != ''} {environ['EARLY_NAMES']}"]
for epoch in range(3):
    order = list(range(4))
    shuffle(order)
    for x, y in DataLoader(train, 16, shuffle=True):
        x = x + 0.01 * tensor(rand(*x.shape), dtype=x.dtype) * random()
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        recent.append((norm.item(), loss.item()))
        sleep(0.001)
    with no_grad():
        model.eval()
        wrong = sum((model(x[None]).argmax() != y).item() for x, y in held_out)
        model.train()
    lines.append(f"{epoch} {order} {permutation(4).tolist()} {choice('abc')} {list(recent)} {wrong}")
assert perf_counter() > started
lines.append(repr(parameters_to_vector(model.parameters()).norm().item()))
with open(join("early", "names.log"), "w") as file:
    file.write("\n".join(lines))
save(model.state_dict(), join("early", "names.pt"))
