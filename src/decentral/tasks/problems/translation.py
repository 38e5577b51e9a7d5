"""The problem behind task=translation: cross-entropy of the next token of translations, one model per worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decentral.data.pairs import PAD, Pairs
from decentral.store.metadata import Metric
from decentral.tasks.evaluation import Scope
from decentral.tasks.problems.bleu import COUNTS, Bleu, TextBleu, WordBleu, bleu
from decentral.tasks.problems.buckets import Buckets, padded_share
from decentral.tasks.problems.search import beam_search, greedy
from decentral.tasks.problems.supervised import Supervised

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.tasks.translation import Translation


class SmoothedLoss:
    """Cross-entropy of tokens with label smoothing; what fills up counts for nothing."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Logits [B, T, vocabulary] and tokens [B, T] -> the mean over tokens, their sum, or [B, T]."""
        found = F.cross_entropy(
            outputs.flatten(0, -2),
            targets.flatten(),
            ignore_index=PAD,
            label_smoothing=self.smoothing,
            reduction=reduction,
        )
        return found.view(targets.shape) if reduction == "none" else found


class Translating(Supervised):
    """Every worker's batches have shapes of their own; a test example is translated, and compared with its reference.

    Its statistics are the counts of BLEU, the sum of the cross-entropies of tokens, and the number of tokens.
    """

    data: Pairs
    ignored = PAD
    num_statistics = COUNTS + 2

    def __init__(self, task: Translation, config: Config, workers: range, device: torch.device) -> None:
        self.loss = SmoothedLoss(task.label_smoothing)
        self.translation = task
        super().__init__(task, config, workers, device)
        self.bleu: Bleu = WordBleu() if self.data.text.plain else TextBleu()
        self.metrics = (Metric("test", "BLEU", larger_is_better=True), Metric("test", "loss", unit=self.loss_unit))
        first = [self.order.batch(0, draw) for draw in range(self.order.batches_per_pass[0])]
        share = round(padded_share(self.data.train, first), 4)
        self.facts = {**self.facts, "bleu": self.bleu.signature, "padded_share_of_tokens": share}

    def prepare_batches(self) -> None:
        """Batches of a bucket each, see `Buckets`."""
        config = self.config
        assert config.num_workers is not None
        self.indices = config.partition.indices(self.data.train_labels, config.num_workers, config.seed)
        most = self.translation.max_tokens
        self.order: Buckets = Buckets(self.data, self.indices, self.workers, config.batch_size, most, config.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Of the cross-entropies alone, without smoothing."""
        total[COUNTS] += F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
        total[COUNTS + 1] += (targets != PAD).sum()

    def finish(self, statistics: Tensor) -> Tensor:
        """BLEU and mean cross-entropy per token: [..., COUNTS + 2] -> [..., 2]."""
        loss = statistics[..., COUNTS] / statistics[..., COUNTS + 1]
        return torch.stack([bleu(statistics[..., :COUNTS]), loss], dim=-1)

    def translated(self, module: nn.Module, source: Tensor) -> list[str]:
        """What a network in eval mode writes for source [B, S], as text."""
        task = self.translation
        if task.beam == 1:
            found = greedy(module, source, task.extra_length)
        else:
            found = beam_search(module, source, task.extra_length, task.beam, task.length_penalty)
        return [self.data.text.words(tokens) for tokens in found]

    def save_tables(self, directory: Path) -> None:
        """partition.csv: how many sentences of each bucket each worker has; buckets.csv: what the buckets are."""
        from decentral.partition.partition import class_counts, save_table
        from decentral.store.files import csv_text, write_text

        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        save_table(counts, directory / "partition.csv", "bucket")
        each = zip(self.data.bounds.tolist(), self.order.most.tolist(), counts.sum(0).tolist(), strict=True)
        head = ["bucket", "longest_tokens", "most_pairs_in_a_batch", "pairs"]
        rows = ([number, *row] for number, row in enumerate(each))
        write_text(directory / "buckets.csv", csv_text(head, rows))

    def _tested(self, modules: dict[str, nn.Module], scope: Scope, part: int, parts: int) -> Tensor:
        """The statistics of this part's batches of the test sentences: [modules, S]."""
        batches = self._test_batches(scope)[part::parts]
        totals = torch.zeros(len(modules), self.num_statistics, dtype=torch.float64)
        with self.config.evaluation.precision.testing(self.device):
            for number, batch in enumerate(batches):
                sentences, target = self.data.batch(self.data.test, batch)
                references = [self.data.text.references[i] for i in batch.tolist()]
                for total, (name, module) in zip(totals, modules.items(), strict=True):
                    scope.tell(f"translating with {name}, batch {number + 1} of {len(batches)}")
                    with self._lent(sentences) as lent:
                        self.add_statistics(total, self._outputs(module, lent), target)
                        found = self.bleu.counts(self.translated(module, lent.source), references)
                    total[:COUNTS] += torch.tensor(found, dtype=torch.float64)
        return totals

    def _test_batches(self, scope: Scope) -> list[np.ndarray]:
        """The test sentences, or so many of them, always the same ones, by their length: numbers of each batch."""
        every = np.arange(self.data.num_test)
        found = every if scope.examples is None else self._test_examples(scope.examples).numpy()
        found = found[np.argsort(self.data.test[0].lengths[found], kind="stable")]
        size = self.config.evaluation.batch_size
        return [found[first : first + size] for first in range(0, len(found), size)]
