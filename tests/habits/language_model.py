"""As nanoGPT trains: settings are globals, TF32 is on, a memmap has the data, gradients accumulate by hand."""

import os
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

out_dir = "out"
eval_interval = 4
eval_iters = 2
gradient_accumulation_steps = 2
batch_size = 8
block_size = 16
n_embd = 32
learning_rate = 1e-2
max_iters = 12
warmup_iters = 3
grad_clip = 1.0
dtype = "bfloat16"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | bool | str)]
exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "configurator.py")).read())
config = {k: globals()[k] for k in config_keys}

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type="cpu", dtype=ptdtype)

np.random.RandomState(0).randint(0, 64, 4000).astype(np.uint16).tofile(os.path.join(out_dir, "train.bin"))
log = open(os.path.join(out_dir, "log.txt"), "w")


def get_batch():
    data = np.memmap(os.path.join(out_dir, "train.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(64, n_embd)
        self.block = nn.TransformerEncoderLayer(n_embd, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(n_embd, 64, bias=False)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        logits = self.head(self.block(self.wte(x), mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, 64), y.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.tensor([model(*get_batch()).item() for _ in range(eval_iters)])
    model.train()
    return losses.mean().item()


model = GPT()
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
X, Y = get_batch()
for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group["lr"] = learning_rate * min(1.0, (iter_num + 1) / warmup_iters)
    if iter_num % eval_interval == 0:
        print(f"step {iter_num}: val loss {estimate_loss()!r}", file=log)
    for _micro_step in range(gradient_accumulation_steps):
        with ctx:
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
log.close()
checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": config}
torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
