"""As the dcgan example trains: two models and two optimizers, `weights_init` through `apply`, `cudnn.benchmark`."""

import random

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

manualSeed = 999
random.seed(manualSeed)
torch.manual_seed(manualSeed)
cudnn.benchmark = True
nz, ngf, ndf = 8, 8, 8
dataset = TensorDataset(torch.randn(64, 1, 8, 8).tanh())
dataloader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=0)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netG.apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz, 1, 1)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
log = open("gan.log", "w")
for epoch in range(2):
    for i, (real,) in enumerate(dataloader):
        netD.zero_grad()
        label = torch.full((real.size(0),), 1.0)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), nz, 1, 1))
        errD_fake = criterion(netD(fake.detach()).view(-1), label.fill_(0.0))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake).view(-1), label.fill_(1.0))
        errG.backward()
        optimizerG.step()
        log.write(f"[{epoch}][{i}] Loss_D: {(errD_real + errD_fake).item()!r} Loss_G: {errG.item()!r}\n")
    np.save(f"fake_samples_epoch_{epoch:03d}.npy", netG(fixed_noise).detach().numpy())
    torch.save(netG.state_dict(), f"netG_epoch_{epoch}.pth")
    torch.save(netD.state_dict(), f"netD_epoch_{epoch}.pth")
log.close()
