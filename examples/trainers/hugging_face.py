"""A script with the Hugging Face Trainer, decentralized. Run it with `torchrun --nproc-per-node=2 hugging_face.py`; run
it again to continue it."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, random_split
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import decentral

EPOCHS, BATCH_SIZE, ACCUMULATE = 4, 35, 2

peers = decentral.join("one_peer_exponential")
set_seed(0)
x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
data = [{"images": image, "labels": label} for image, label in zip(x.float() / 16, y, strict=True)]
train, test = random_split(data, [1400, len(data) - 1400])
mine = Subset(train, range(peers.rank, len(train), peers.size))


class Classifier(nn.Module):
    """A network with one hidden layer. It returns what models of transformers return."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, and the logits."""
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    f"checkpoints/rank{peers.rank}",  # every rank saves its own
    use_cpu=peers.device.type == "cpu",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=BATCH_SIZE,
    gradient_accumulation_steps=ACCUMULATE,
    max_grad_norm=1.0,
    save_strategy="epoch",
    report_to="none",
    disable_tqdm=peers.rank != 0,
)
# Every process is one worker on its own device. Otherwise the Trainer would average gradients over all processes.
state = args.distributed_state
state.distributed_type, state.num_processes, state.process_index = "NO", 1, 0

model = Classifier()
# A model of transformers saves its weights on rank 0 only, unless this is set:
# model.should_save_on_this_rank = lambda is_main_process: is_main_process
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = decentral.wrap(model, optimizer, peers=peers)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, len(mine) // (BATCH_SIZE * ACCUMULATE), gamma=0.8)
trainer = Trainer(model, args, train_dataset=mine, eval_dataset=test, optimizers=(optimizer, scheduler))
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))

with optimizer.averaged():
    metrics = trainer.evaluate()
print(f"rank {peers.rank}: test loss {metrics['eval_loss']:.4f}")
