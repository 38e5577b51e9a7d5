"""A Lightning script, decentralized. Run it with `torchrun --nproc-per-node=2 lightning_module.py`; run it again to
continue it."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

import decentral

EPOCHS, BATCH_SIZE, ACCUMULATE = 4, 35, 2

peers = decentral.join("one_peer_exponential")
L.seed_everything(0)  # the same first weights on every rank


class Classifier(L.LightningModule):
    """A network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> dict:
        """Return the decentralized optimizer and its schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        # Lightning has loaded the weights of a checkpoint by now, and loads the optimizer's state afterwards.
        optimizer = decentral.wrap(self, optimizer, peers=peers, broadcast_from=None)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)}


x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)
train, test = random_split(data, [1400, len(data) - 1400])
loader = DataLoader(train, BATCH_SIZE, sampler=DistributedSampler(train, peers.size, peers.rank))

model = Classifier()
trainer = L.Trainer(
    # Every process is one worker on its own device. strategy="ddp" would average gradients, as "auto" does on GPUs.
    accelerator=peers.device.type,
    strategy=SingleDeviceStrategy(peers.device),
    max_epochs=EPOCHS,
    accumulate_grad_batches=ACCUMULATE,
    gradient_clip_val=1.0,
    callbacks=[ModelCheckpoint(f"checkpoints/rank{peers.rank}", save_last=True)],  # every rank saves its own
    default_root_dir=f"logs/rank{peers.rank}",
    enable_progress_bar=peers.rank == 0,
)
trainer.fit(model, loader, ckpt_path="last")

peers.allreduce_parameters(model)
images, labels = test[:]
accuracy = (model.layers(images).argmax(1) == labels).double().mean()
print(f"rank {peers.rank}: {accuracy:.1%} of the test images")
