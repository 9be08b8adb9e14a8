"""As accelerate's `init_empty_weights`: `register_parameter` and constructors are replaced while a model is made."""

import json
from contextlib import contextmanager

import torch
import torch.nn as nn


@contextmanager
def init_empty_weights():
    old_register_parameter = nn.Module.register_parameter
    constructors = {name: getattr(torch, name) for name in ("empty", "zeros", "ones", "full")}

    def register_empty_parameter(module, name, param):
        old_register_parameter(module, name, param)
        if param is not None:
            param_cls = type(module._parameters[name])
            module._parameters[name] = param_cls(module._parameters[name].to("meta"), requires_grad=param.requires_grad)

    def patch_tensor_constructor(fn):
        def wrapper(*args, **kwargs):
            kwargs["device"] = torch.device("meta")
            return fn(*args, **kwargs)

        return wrapper

    try:
        nn.Module.register_parameter = register_empty_parameter
        for name, function in constructors.items():
            setattr(torch, name, patch_tensor_constructor(function))
        yield
    finally:
        nn.Module.register_parameter = old_register_parameter
        for name, function in constructors.items():
            setattr(torch, name, function)


def build():
    blocks = [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(12)]
    return nn.Sequential(nn.Embedding(32, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, 32))


torch.manual_seed(11)
state = build().state_dict()
shards = [dict(list(state.items())[i::3]) for i in range(3)]
for i, shard in enumerate(shards):
    torch.save(shard, f"shard-{i}.pt")

sizes = []
for _ in range(5):  # a device map is tried on empty models
    with init_empty_weights():
        model = build()
    assert all(p.device.type == "meta" for p in model.parameters())
    sizes.append(sum(p.numel() for p in model.parameters()))
for i in range(3):
    model.load_state_dict(torch.load(f"shard-{i}.pt"), strict=False, assign=True)
assert not any(p.device.type == "meta" for p in model.parameters())

optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _ in range(6):
    tokens = torch.randint(0, 32, (8, 12))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(loss.item())
torch.save(model.state_dict(), "empty_weights.pt")
with open("empty_weights.json", "w") as file:
    json.dump({"sizes": sizes, "loss": history}, file)
