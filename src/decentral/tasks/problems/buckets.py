"""Which sentences a worker draws when: those of a batch are about as long as each other, and every batch is another
size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from decentral.randomness import numpy_generator

if TYPE_CHECKING:
    from decentral.data.pairs import Corpus, Pairs


class Buckets:
    """`order(draw)` -> for each local worker the numbers [B] of the sentence pairs that it draws: a list of k.

    A bucket holds the pairs whose longer side has about as many tokens. In each pass a worker goes once through all its
    pairs: those of a bucket are ordered by how much longer one side is than the other, those with the same difference
    at random, and cut into batches of as many pairs each, at most `batch_size` and `max_tokens` / longest of the
    bucket; then all batches are drawn in a random order, so that every step of every worker is in a random bucket. The
    orders are addressed by (seed, worker, pass); a worker begins its next pass when it is through, not when others are.
    """

    def __init__(
        self,
        pairs: Pairs,
        indices: Sequence[np.ndarray],
        workers: range,
        batch_size: int,
        max_tokens: int,
        seed: int,
    ) -> None:
        """indices [n]: the pairs of each worker, for training."""
        self.workers, self.seed, self.bucket = workers, seed, pairs.train_labels
        self.most = np.clip(max_tokens // pairs.bounds, 1, batch_size)
        """[buckets]: pairs in a batch."""
        self.slack = pairs.train[1].lengths - pairs.train[0].lengths
        self.parts = [self._by_bucket(indices[i]) for i in workers]
        counts = [self._num_batches(np.bincount(self.bucket[part], minlength=len(self.most))) for part in indices]
        self.steps_per_epoch = sum(counts) / len(counts)
        """Batches that all workers have together, over their number."""
        self.batches_per_pass = [counts[i] for i in workers]
        self._passes: list[tuple[int, list[np.ndarray]]] = [(-1, []) for _ in workers]

    def __call__(self, draw: int) -> list[np.ndarray]:
        """See above."""
        return [self.batch(i, draw) for i in range(len(self.parts))]

    def of(self, *local: int) -> Callable[[int], list[np.ndarray]]:
        """The same of some local workers alone."""
        return lambda draw: [self.batch(i, draw) for i in local]

    def batch(self, i: int, draw: int) -> np.ndarray:
        """The numbers [B] of local worker i."""
        number, place = divmod(draw, self.batches_per_pass[i])
        if self._passes[i][0] != number:
            self._passes[i] = number, self._pass(i, number)
        return self._passes[i][1][place]

    def _pass(self, i: int, number: int) -> list[np.ndarray]:
        generator = numpy_generator(self.seed, "order of sentences", self.workers[i], number)
        batches: list[np.ndarray] = []
        for bucket, pairs in self.parts[i]:
            shuffled = pairs[generator.permutation(len(pairs))]
            ordered = shuffled[np.argsort(self.slack[shuffled], kind="stable")]
            batches += np.array_split(ordered, -(-len(pairs) // int(self.most[bucket])))
        return [batches[j] for j in generator.permutation(len(batches))]

    def _by_bucket(self, part: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Bucket and pairs of each bucket of which the worker has any."""
        part = np.sort(part)
        return [(int(b), part[self.bucket[part] == b]) for b in np.unique(self.bucket[part])]

    def _num_batches(self, pairs: np.ndarray) -> int:
        """Of so many pairs [buckets] of one worker."""
        return int(-(-pairs // self.most).sum())


def padded_share(pairs: tuple[Corpus, Corpus], batches: Sequence[np.ndarray]) -> float:
    """Of all tokens in these batches, on both sides, the share that only fills up."""
    lengths = [side.lengths for side in pairs]
    tokens = sum(int(side[batch].sum()) for batch in batches for side in lengths)
    places = sum(len(batch) * int(side[batch].max()) for batch in batches for side in lengths)
    return 1 - tokens / places
