"""A Fabric script, decentralized. Run it with `torchrun --nproc-per-node=2 fabric.py`; run it again to continue it."""

import lightning as L
import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import decentral

EPOCHS, BATCH_SIZE, ACCUMULATE = 4, 35, 2

peers = decentral.join("one_peer_exponential")
# Every process is one worker on its own device. strategy="ddp" would average gradients, as "auto" does on GPUs.
fabric = L.Fabric(accelerator=peers.device.type, strategy=SingleDeviceStrategy(peers.device))
fabric.seed_everything(0)

x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)
train, test = torch.utils.data.random_split(data, [1400, len(data) - 1400])
sampler = DistributedSampler(train, peers.size, peers.rank)
loader = DataLoader(train, BATCH_SIZE, sampler=sampler)  # fabric.setup_dataloaders would count epochs from 0 again

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = decentral.wrap(model, optimizer, peers=peers)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
module, stepper = fabric.setup(model, optimizer)

done = decentral.resume("checkpoints", model, optimizer, scheduler=scheduler, epoch=0)
for epoch in range(done["epoch"], EPOCHS):
    sampler.set_epoch(epoch)
    for number, batch in enumerate(loader, 1):
        images, labels = fabric.to_device(batch)
        fabric.backward(nn.functional.cross_entropy(module(images), labels) / ACCUMULATE)
        if number % ACCUMULATE == 0:
            fabric.clip_gradients(module, stepper, max_norm=1.0)
            stepper.step()
            stepper.zero_grad()
    scheduler.step()
    decentral.checkpoint("checkpoints", model, optimizer, scheduler=scheduler, epoch=epoch + 1)

with optimizer.averaged(), torch.no_grad():
    images, labels = fabric.to_device(test[:])
    accuracy = (module(images).argmax(1) == labels).double().mean()
print(f"rank {peers.rank}: {accuracy:.1%} of the test images")
