"""The problem behind task=translation: batches of sentences, decoding, BLEU, one model per worker."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.models.layers.statistics import evaluating
from decentral.partition.partition import class_counts
from decentral.plugins.translation.data.parallel import BEGIN, END, PAD, Corpus, Pairs
from decentral.randomness import numpy_generator
from decentral.store.files import csv_text, write_text
from decentral.store.metrics import Metric
from decentral.tasks.problems.batches import DrawOrder
from decentral.tasks.problems.supervised import Supervised
from decentral.tasks.task import EvaluationSettings, Scope, TaskConfig

if TYPE_CHECKING:
    from decentral.data.dataset import DataSet
    from decentral.network.network import Network
    from decentral.network.world import World
    from decentral.plugins.translation.data.parallel import SentencePairs
    from decentral.plugins.translation.networks import EncoderDecoder
    from decentral.plugins.translation.tasks.translation import Translation

ORDER = 4
COUNTS = 2 * ORDER + 2
"""Number of counts: matched n-grams and all n-grams for n = 1 to 4, words of translations, and words of references."""


class WordBleu:
    """BLEU for texts with words separated by blanks: needs no package, and equals sacrebleu with tokenize=none."""

    signature = "nrefs:1|case:lc|eff:no|tok:none|smooth:exp"
    """The signature in sacrebleu's format."""

    def counts(self, translations: Sequence[str], references: Sequence[str]) -> list[int]:
        """Return the sums over these sentences behind the score, `COUNTS` numbers; uncased.

        For each n: the number of n-grams that also occur in the reference, clipped to their count there.
        """
        matches, totals, written, asked = [0] * ORDER, [0] * ORDER, 0, 0
        for text, reference in zip(translations, references, strict=True):
            ours, theirs = text.lower().split(), reference.lower().split()
            written, asked = written + len(ours), asked + len(theirs)
            for n in range(1, ORDER + 1):
                found = _in_a_row(ours, n)
                matches[n - 1] += (found & _in_a_row(theirs, n)).total()
                totals[n - 1] += found.total()
        return [*matches, *totals, written, asked]


class TextBleu:
    """Sacrebleu's own counts, with its default tokenizer (13a): the score that papers report."""

    def __init__(self) -> None:
        """Import sacrebleu. Raises ConfigError if it is missing."""
        require("sacrebleu", "task=translation with texts", "pip install '.[translation]'")
        from sacrebleu.metrics import BLEU

        self._bleu = BLEU(lowercase=True, force=True)
        self._bleu.corpus_score(["a"], [["a"]])  # after which it knows how many references there are
        self.signature = str(self._bleu.get_signature())

    def counts(self, translations: Sequence[str], references: Sequence[str]) -> list[int]:
        """Return sacrebleu's counts."""
        score = self._bleu.corpus_score(list(translations), [list(references)])
        return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def bleu(counts: Tensor) -> Tensor:
    """Return the score, 0 to 100, of each row of sums: [..., COUNTS] -> [...], float64.

        min(1, exp(1 - references / written)) (p_1 p_2 p_3 p_4)^(1/4),  p_n = 100 matches_n / totals_n

    Papineni et al., ACL 2002, for a corpus. The k-th p_n without matches counts as 100 / (2^k totals_n), sacrebleu's
    smoothing "exp"; without any match, or any four words in a row, the score is 0.
    """
    flat = [_score(row) for row in counts.reshape(-1, COUNTS).tolist()]
    return torch.tensor(flat, dtype=torch.float64).reshape(counts.shape[:-1])


def _score(row: Sequence[float]) -> float:
    matches, totals, (written, asked) = row[:ORDER], row[ORDER : 2 * ORDER], row[2 * ORDER :]
    if not any(matches) or not all(totals):
        return 0.0
    logarithms, without = 0.0, 0
    for found, total in zip(matches, totals, strict=True):
        without += not found
        logarithms += math.log(100 * found / total if found else 100 / (2**without * total))
    return math.exp(min(0.0, 1 - asked / written) + logarithms / ORDER)


def _in_a_row(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


class Buckets(DrawOrder):
    """`order(draw)` -> the indices [B] of each local worker's sentence pairs: a list of k.

    A bucket has the pairs whose longer side has a similar number of tokens. In each pass a worker visits all its pairs
    once. The pairs of a bucket are sorted by the difference in length of their sides, randomly on ties, and cut into
    batches of equal size, at most `batch_size` and `max_tokens` / longest of the bucket. Then all batches are shuffled,
    so each step of each worker uses a random bucket. The orders are addressed by (seed, worker, pass); a worker begins
    its next pass independently of others.
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
        """Store `indices` [n]: the training pairs of each worker."""
        self.workers, self.seed, self.bucket = workers, seed, pairs.train_labels
        self.most = np.clip(max_tokens // pairs.bounds, 1, batch_size)
        """Pairs in a batch: [buckets]."""
        self.slack = pairs.train[1].lengths - pairs.train[0].lengths
        self.parts = []
        """Bucket and pairs of each nonempty bucket of each local worker."""
        for i in workers:
            part = np.sort(indices[i])
            self.parts.append([(int(b), part[self.bucket[part] == b]) for b in np.unique(self.bucket[part])])
        pairs_of = [np.bincount(self.bucket[part], minlength=len(self.most)) for part in indices]
        counts = [int(-(-each // self.most).sum()) for each in pairs_of]
        self.steps_per_epoch = sum(counts) / len(counts)
        """Total number of batches divided by the number of workers."""
        self.batches_per_pass = [counts[i] for i in workers]
        self._passes: list[tuple[int, list[np.ndarray]]] = [(-1, []) for _ in workers]

    def row(self, i: int, draw: int) -> np.ndarray:
        """Return the numbers [B] of local worker i."""
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


def greedy(module: nn.Module, source: Tensor, extra_length: int) -> list[list[int]]:
    """Translate source [B, S]: choose the most likely token, until the end token.

    A translation has at most the number of source tokens plus `extra_length` tokens. Complete sentences are dropped on
    the way.
    """
    network = cast("EncoderDecoder", module)
    written, most = network.begin(source), _most(source, extra_length)
    numbers, tokens = torch.arange(len(source)), source.new_full((len(source),), BEGIN)
    translations: list[list[int]] = [[] for _ in range(len(source))]
    for position in range(int(most.max())):
        logits, written = network.write(tokens, written)
        tokens = logits.argmax(1)
        for number, token in zip(numbers.tolist(), tokens.tolist(), strict=True):
            if token != END:
                translations[number].append(token)
        going_on = (tokens.cpu() != END) & (most[numbers] > position + 1)
        if not going_on.all():
            chosen = going_on.nonzero()[:, 0]
            if not len(chosen):
                break
            numbers, here = numbers[chosen], chosen.to(tokens.device)
            tokens, written = tokens[here], written.rows(here)
    return translations


def beam_search(module: nn.Module, source: Tensor, extra_length: int, width: int, penalty: float) -> list[list[int]]:
    """Decode with a beam of the `width` most likely prefixes; width 1 is `greedy`.

    In each step, continuations of incomplete prefixes compete with complete ones by probability. The result has the
    largest log P / ((5 + length) / 6)^penalty (Wu et al. 2016, arXiv:1609.08144, equation 14; the length includes the
    end token).
    """
    network = cast("EncoderDecoder", module)
    B, device = len(source), source.device
    written, most = network.begin(source), _most(source, extra_length).to(device)
    rows = torch.arange(B, device=device).repeat_interleave(width)
    written = written.rows(rows)
    tokens = torch.full((B, width), BEGIN, dtype=source.dtype, device=device)
    score = torch.full((B, width), -torch.inf, dtype=torch.float64, device=device)
    score[:, 0] = 0.0  # initially all beams are equal
    complete = torch.zeros(B, width, dtype=torch.bool, device=device)
    lengths = torch.zeros(B, width, dtype=torch.int64, device=device)
    history = source.new_zeros(B, width, 0)
    for place in range(int(most.max())):
        logits, written = network.write(tokens.reshape(-1), written)
        continued = logits.double().log_softmax(1).view(B, width, -1)
        continued.masked_fill_(complete[..., None], -torch.inf)
        continued[..., PAD] = torch.where(complete, 0.0, continued[..., PAD])  # complete beams are unchanged
        score, best = (score[..., None] + continued).flatten(1).topk(width, dim=1)
        parent, tokens = best // continued.shape[2], best % continued.shape[2]
        complete, lengths = complete.gather(1, parent), lengths.gather(1, parent)
        history = history.gather(1, parent[..., None].expand(-1, -1, place))
        lengths = lengths + ~complete
        history = torch.cat([history, torch.where(complete, PAD, tokens)[..., None]], dim=2)
        complete = complete | (tokens == END) | (place + 1 >= most)[:, None]
        if complete.all():
            break
        written = written.rows((parent + width * torch.arange(B, device=device)[:, None]).reshape(-1))
    chosen = (score / ((5 + lengths.double()) / 6) ** penalty).argmax(1)
    each = torch.arange(B, device=device)
    found, length = history[each, chosen].tolist(), lengths[each, chosen].tolist()
    return [[token for token in row[:n] if token != END] for row, n in zip(found, length, strict=True)]


def written(module: nn.Module, source: Tensor, task: Translation, words: Callable[[Sequence[int]], str]) -> list[str]:
    """Return the translations of source [B, S] as text."""
    if task.beam == 1:
        found = greedy(module, source, task.extra_length)
    else:
        found = beam_search(module, source, task.extra_length, task.beam, task.length_penalty)
    return [words(tokens) for tokens in found]


def translations(
    module: nn.Module,
    sources: Corpus,
    numbers: np.ndarray,
    task: Translation,
    evaluation: EvaluationSettings,
    words: Callable[[Sequence[int]], str],
    device: torch.device,
    part: int = 0,
    parts: int = 1,
) -> dict[int, str]:
    """Return the translations of this part's sources, by number, with the batches of an evaluation of all sources."""
    texts = dict[int, str]()
    with evaluating(module), evaluation.precision.testing(device):
        for batch in by_length(sources, numbers, evaluation.batch_size)[part::parts]:
            source = torch.from_numpy(sources.rows(batch)[:, 1:]).to(device)
            texts.update(zip(batch.tolist(), written(module, source, task, words), strict=True))
    return texts


def translate(
    module: nn.Module, sentences: Sequence[str], data: DataSet, task: Translation, evaluation: EvaluationSettings
) -> list[str]:
    """Translate any sentences. Raises ConfigError for sentences without tokens, or with too many."""
    text, longest = cast("Pairs", data.load("cpu", 0)).text, cast("SentencePairs", data.inspect()).longest
    if isinstance(sentences, str) or not all(isinstance(sentence, str) for sentence in sentences):
        raise ConfigError(f"sentences={sentences!r} is not a list of sentences: give one, such as ['a b c'].")
    if text.tokens is None:
        raise ConfigError("These data translate test sentences only: give their Text a function tokens.")
    tokens = [text.tokens(sentence) for sentence in sentences]
    for number, found in enumerate(tokens):
        if not 1 <= len(found) <= longest:
            raise ConfigError(
                f"sentences[{number}] has {len(found)} tokens: give sentences of 1 to {longest} tokens (data.longest)."
            )
    device = next(module.parameters()).device
    every = translations(module, Corpus.of(tokens), np.arange(len(tokens)), task, evaluation, text.words, device)
    return [every[number] for number in range(len(tokens))]


def by_length(sources: Corpus, numbers: np.ndarray, size: int) -> list[np.ndarray]:
    """Return batches of these sentences, sorted by length: the numbers of each batch."""
    ordered = numbers[np.argsort(sources.lengths[numbers], kind="stable")]
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def _most(source: Tensor, extra_length: int) -> Tensor:
    """Return the maximum number of tokens of a translation, including the end token: [B] on the CPU."""
    return (source != PAD).sum(1).cpu() + extra_length


def smoothed_loss(outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean", smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy with label smoothing of logits [B, T, vocabulary] and tokens [B, T], without padding.

    It is the mean over tokens, their sum, or [B, T].
    """
    flat = outputs.flatten(0, -2), targets.flatten()
    losses = F.cross_entropy(*flat, ignore_index=PAD, label_smoothing=smoothing, reduction=reduction)
    return losses.view(targets.shape) if reduction == "none" else losses


class Translating(Supervised):
    """Translation with batches of different shapes per worker; a test example is translated, and compared with its
    reference.

    The statistics are the counts of BLEU, the sum of the cross-entropies of tokens, and the number of tokens.
    """

    data: Pairs
    ignored = PAD
    dealt = "bucket"
    num_statistics = COUNTS + 2

    def __init__(self, task: Translation, config: TaskConfig, workers: range, device: torch.device) -> None:
        self.loss = partial(smoothed_loss, smoothing=task.label_smoothing)
        self.translation = task
        super().__init__(task, config, workers, device)
        self.bleu: WordBleu | TextBleu = WordBleu() if self.data.text.plain else TextBleu()
        self.usual_metrics = (
            Metric("test", "BLEU", larger_is_better=True),
            Metric("test", "loss", unit=self.loss_unit),
        )
        self.facts = {**self.facts, "bleu": self.bleu.signature}

    def prepare_batches(self) -> None:
        """Prepare batches of one bucket each, see `Buckets`."""
        config = self.config
        self.indices = config.partition.indices(self.data.train_labels, config.num_workers, config.seed)
        most = self.translation.max_tokens
        self.order: Buckets = Buckets(self.data, self.indices, self.workers, config.batch_size, most, config.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the sums of the cross-entropies, without smoothing."""
        total[COUNTS] += F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
        total[COUNTS + 1] += (targets != PAD).sum()

    def usual_values(self, statistics: Tensor) -> Tensor:
        """Return BLEU and mean cross-entropy per token: [..., COUNTS + 2] -> [..., 2]."""
        loss = statistics[..., COUNTS] / statistics[..., COUNTS + 1]
        return torch.stack([bleu(statistics[..., :COUNTS]), loss], dim=-1)

    def save_tables(self, directory: Path) -> None:
        """Write partition.csv, the number of sentences per bucket and worker, and buckets.csv, the buckets."""
        super().save_tables(directory)
        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        each = zip(self.data.bounds.tolist(), self.order.most.tolist(), counts.sum(0).tolist(), strict=True)
        head = ["bucket", "longest_tokens", "most_pairs_in_a_batch", "pairs"]
        rows = ([number, *row] for number, row in enumerate(each))
        write_text(directory / "buckets.csv", csv_text(head, rows))

    def _tested(self, modules: dict[str, nn.Module], scope: Scope, part: int, parts: int) -> Tensor:
        """Return the statistics of this part's batches of the test sentences: [modules, S]."""
        size = self.config.evaluation.batch_size
        batches = by_length(self.data.test[0], self._chosen(scope).numpy(), size)[part::parts]
        totals, task = torch.zeros(len(modules), self.num_summed, dtype=torch.float64), self.translation
        with self.config.evaluation.precision.testing(self.device):
            for number, batch in enumerate(batches):
                sentences, target = self.data.batch(self.data.test, batch)
                references = [self.data.text.references[i] for i in batch.tolist()]
                for total, (name, module) in zip(totals, modules.items(), strict=True):
                    scope.tell(f"translating with {name}, batch {number + 1} of {len(batches)}")
                    lent = tree_map(Tensor.clone, sentences)
                    self.add(total, self._outputs(module, lent), target, torch.from_numpy(batch))
                    found = self.bleu.counts(written(module, lent.source, task, self.data.text.words), references)
                    total[:COUNTS] += torch.tensor(found, dtype=torch.float64)
        return totals

    def save_outputs(self, x: Tensor, net: Network, world: World, directory: Path) -> None:
        """Write translations.csv: test sentences, their references, and the averaged model's translations."""
        task, text, (sources, _) = self.translation, self.data.text, self.data.test
        if not task.translations:
            return
        self.average_states(net)
        numbers, texts = self._chosen(Scope(examples=task.translations)).numpy(), dict[int, str]()
        with self.average.at(net.average(x), self._statistics_batches) as models:
            settings = task, self.config.evaluation, text.words, self.device, world.rank, world.size
            part_texts = translations(models.for_tests(0), sources, numbers, *settings)
        for packed in world.collect_any(json.dumps(list(part_texts.items())).encode()):
            texts.update(json.loads(packed))
        if world.leader:
            rows = (
                (text.words(sources.rows(np.array([i]))[0, 1:-1].tolist()), text.references[i], texts[i])
                for i in numbers.tolist()
            )
            write_text(directory / "translations.csv", csv_text(["source", "reference", "translation"], rows, True))
