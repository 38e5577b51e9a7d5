"""The problem behind task=images: cross-entropy of one model per worker on that worker's pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from decentral.executions.execution import Work
from decentral.executions.passes.pictures import Layout
from decentral.executions.passes.worker_models import WorkerModels, flat, seed_dropout
from decentral.models.statistics import has_batch_statistics, recompute_batch_statistics
from decentral.precision import float32
from decentral.randomness import address, torch_generator
from decentral.registry import components
from decentral.tasks.problems.batches import BatchOrder
from decentral.tasks.task import Metric, Problem

if TYPE_CHECKING:
    from decentral.config import Config
    from decentral.tasks.images import Images

_STATISTICS_BATCH_SIZE = 64


class Classification(Problem):
    """Per-worker gradients at models that are views of the rows, computed as `execution` says."""

    metrics = (
        Metric("test", "accuracy", larger_is_better=True, percent=True),
        Metric("test", "loss"),
    )

    def __init__(self, task: Images, config: Config, workers: range, device: torch.device) -> None:
        assert config.num_workers is not None
        self.task, self.config, self.workers, self.device, self.seed = task, config, workers, device, config.seed
        self.data = config.data.load(device, config.seed)
        self.indices = config.partition.indices(self.data.train_labels, config.num_workers, config.seed)
        self.order = BatchOrder(
            self.indices, workers, config.batch_size, config.seed, reshuffle=task.reshuffle, drop_last=task.drop_last
        )
        self.steps_per_epoch = float(self.order.steps_per_epoch)
        info = config.data.inspect()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(address(config.seed, "initial model"))
            template = config.model.build(info.image_shape, self.data.num_classes)
        self.dtype = config.precision.dtype
        template.to(self.dtype)
        self.models = WorkerModels(template, len(workers), device)
        self.average = WorkerModels(template, 1, device)
        self.layout = Layout(template, device)
        execution = components("executions")[config.execution]()
        self.passes = execution.passes(Work(self.models, (config.batch_size, *info.image_shape), config.precision))
        self.facts = {"execution": self.passes.execution}
        self._x0 = flat(template).to(device)
        self._buffers = self.models.buffers()
        self._stream: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._next = -1
        if has_batch_statistics(template):
            self.notes = (
                f"averaged model: batch-norm statistics recomputed on {task.statistics_pictures} training pictures",
            )

    def init(self, seed: int) -> Tensor:
        """The model as it was built [P]; to be asked for once."""
        x0, self._x0 = self._x0, self._x0[:0]
        return x0

    def gradient(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Cross-entropies [k] and their gradients [k, P], by the passes of `execution`."""
        images, labels = self.next_batch(index)
        return self.passes(
            x, images.to(self.dtype), labels, lambda i: seed_dropout(self.device, self.seed, self.workers[i], index)
        )

    def evaluate_workers(self, x: Tensor) -> Tensor:
        """Accuracy and cross-entropy on the whole test set, of every local worker's own model: [k, 2]."""
        self.models.bind(x)
        return self._test(self.models.modules)

    def evaluate_average(self, x: Tensor, part: int, parts: int) -> Tensor:
        """The same of one averaged model [P]: [2]; this part's share of the test set's sums."""
        self.average.bind(x[None])
        (module,) = self.average.modules
        with float32(self.device):
            recompute_batch_statistics(module, self._statistics_batches())
        found = self._test([module], part, parts)[0]
        self.average.release()
        return found

    def save_tables(self, directory: Path) -> None:
        """partition.csv: the distribution of the classes over the workers."""
        from decentral.partition.partition import class_counts
        from decentral.partition.picture import save_table

        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        save_table(counts, directory / "partition.csv")

    def buffers(self) -> dict[str, Tensor]:
        """Batch-norm statistics [k, ...]."""
        return self._buffers

    def close(self) -> None:
        """Stop loaders."""
        self._close_stream()
        self.data.close()

    def next_batch(self, index: int) -> tuple[Tensor, Tensor]:
        """The batch that every worker draws index-th. In order, it comes from a stream that may read ahead."""
        if index != self._next:
            self._close_stream()
            self._stream = self.data.train_batches(self.order, self.workers, index, 2**62)
        self._next = index + 1
        return next(self._stream)

    def _close_stream(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def _statistics_batches(self) -> Iterator[Tensor]:
        """Training pictures of all workers, always the same ones, in batches of about the same size."""
        N, wanted = len(self.data.train_labels), self.task.statistics_pictures
        picks = torch.randint(N, (1, wanted), generator=torch_generator("cpu", self.seed, "batch statistics"))
        batches = picks.tensor_split(-(-wanted // _STATISTICS_BATCH_SIZE), dim=1)
        for images, _ in self.data.train_batches(batches.__getitem__, range(1), 0, len(batches)):
            yield self.layout(images[0].to(self.dtype))

    def _test(self, modules: list[torch.nn.Module], part: int = 0, parts: int = 1) -> Tensor:
        """Sums over this part's batches of the test set, divided by the size of all of it: [modules, 2]."""
        totals = torch.zeros(len(modules), len(self.metrics), dtype=torch.float64, device=self.device)
        count = 0
        for module in modules:
            module.eval()
        with torch.no_grad(), float32(self.device):
            for number, (images, labels) in enumerate(self.data.test_batches(self.task.test_batch_size)):
                count += len(labels)
                if number % parts != part:
                    continue
                images = self.layout(images.to(self.dtype))
                for total, module in zip(totals, modules, strict=True):
                    logits = module(images)
                    total[0] += (logits.argmax(1) == labels).sum()
                    total[1] += F.cross_entropy(logits, labels, reduction="sum")
        for module in modules:
            module.train()
        return (totals / count).cpu()
