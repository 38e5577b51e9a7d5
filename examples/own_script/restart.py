"""RelaySGD on double binary trees, resumed after a rank or the whole job has died: docs/own_script.md."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import decentral

x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
x, order = x.float() / 16, torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:1400], order[1400:]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = decentral.wrap(model, optimizer, "dbt", algo="relaysgd", algo_settings={"fill": "previous"})
peers = optimizer.peers
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
mine = train[peers.rank :: peers.size][: len(train) // peers.size]
done = decentral.resume("checkpoints", model, optimizer, scheduler=scheduler, epoch=0)
for epoch in range(done["epoch"], 20):  # from 0 without a checkpoint
    for batch in mine[torch.randperm(len(mine))].split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    scheduler.step()
    decentral.checkpoint("checkpoints", model, optimizer, scheduler=scheduler, epoch=epoch + 1)
loss = nn.functional.cross_entropy(model(x[test]), y[test])
print(f"rank {peers.rank}: test loss {loss:.17f}, from epoch {done['epoch']}\n", end="")
peers.close()
