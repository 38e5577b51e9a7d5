"""An Accelerate script, decentralized. Run it with `torchrun --nproc-per-node=2 accelerated.py`; run it again to
continue it."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import decentral

EPOCHS, BATCH_SIZE, ACCUMULATE = 4, 35, 2

peers = decentral.join("one_peer_exponential")
accelerator = Accelerator(
    cpu=peers.device.type == "cpu",
    gradient_accumulation_steps=ACCUMULATE,
    dataloader_config=DataLoaderConfiguration(
        use_seedable_sampler=True
    ),  # the order of the data follows from the epoch
)
torch.manual_seed(0)

x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)
train, test = random_split(data, [1400, len(data) - 1400])

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(accelerator.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = decentral.wrap(model, optimizer, peers=peers)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
# Prepare neither the model, which would average gradients over all processes, nor the scheduler, which would step once
# for every process.
stepper, loader = accelerator.prepare(optimizer, DataLoader(train, BATCH_SIZE, shuffle=True))

done = decentral.resume("checkpoints", model, optimizer, scheduler=scheduler, epoch=0)
for epoch in range(done["epoch"], EPOCHS):
    loader.set_epoch(epoch)
    for images, labels in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            stepper.step()
            stepper.zero_grad()
    scheduler.step()
    decentral.checkpoint("checkpoints", model, optimizer, scheduler=scheduler, epoch=epoch + 1)

with optimizer.averaged(), torch.no_grad():
    images, labels = (each.to(accelerator.device) for each in test[:])
    accuracy = (model(images).argmax(1) == labels).double().mean()
print(f"rank {peers.rank}: {accuracy:.1%} of the test images")
