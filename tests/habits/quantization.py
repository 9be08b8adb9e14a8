"""As GPTQ loads a model: functions of `torch.nn.init` do nothing from here on, then weights come from a file."""

import json
import os

import torch
import torch.nn as nn

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
layers = 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.lm_head = nn.Linear(16, 32)

    def forward(self, x):
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.lm_head(hidden)


def get_model(path):
    def skip(*args, **kwargs):
        pass

    torch.nn.init.kaiming_uniform_ = skip
    torch.nn.init.uniform_ = skip
    torch.nn.init.normal_ = skip
    model = Decoder()
    model.load_state_dict(torch.load(path))
    return model


def find_layers(module, name=""):
    if type(module) is nn.Linear:
        return {name: module}
    found = {}
    for name1, child in module.named_children():
        found.update(find_layers(child, name + "." + name1 if name else name1))
    return found


def quantize(weight, bits=4):
    scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.clamp(torch.round(weight / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale


os.makedirs("quantized", exist_ok=True)
torch.manual_seed(0)
torch.save(Decoder().state_dict(), "quantized/pretrained.pt")
model = get_model("quantized/pretrained.pt")
tokens = torch.randint(0, 32, (8, 16))
report = {}
for name, layer in find_layers(model).items():
    with torch.no_grad():
        quantized = quantize(layer.weight)
        report[name] = (quantized - layer.weight).square().sum().item()
        layer.weight.copy_(quantized)
optimizer = torch.optim.Adam([p for n, p in model.named_parameters() if n.endswith("bias")], lr=1e-2)
for _ in range(10):  # the biases make up for the error
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    report.setdefault("loss", []).append(loss.item())
torch.save(model.state_dict(), "quantized/4bit.pt")
with open("quantized/report.json", "w") as file:
    json.dump(report, file, indent=1)
