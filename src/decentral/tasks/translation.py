"""Translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, SentencePairs
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config
    from decentral.tasks.task import Problem

_WIDEST_BEAM, _MOST_EXTRA = 100, 1000  # beyond, a sentence takes gigabytes, or hours


@dataclass
class Translation(SupervisedTask):
    """Translation: `data` split over the workers by `partition`, `model` trained to write the other language.

        loss = - mean over the tokens y_t of a batch: (1 - s) log p(y_t) + s mean_v log p(v),  s = label_smoothing

    Batches are of sentences that are about as long as each other (`tasks/problems/buckets.py`): at most `batch_size`
    pairs, and so few that no side has more than max_tokens tokens. Each worker is in a random bucket in every step, so
    that batches differ in size between workers and steps, and with them the times of gradients: record_operations=true
    keeps these (cluster.compute.distribution=trace cluster.compute.trace=DIRECTORY takes them as a cluster's). An epoch
    is a pass through all pairs; partition=dirichlet makes workers differ in the lengths of their sentences.

    A run is judged by uncased BLEU (Papineni et al., ACL 2002) of what the models write for the test sentences, the
    other metric is the loss in nats per token, without smoothing and given the right tokens so far. The schedule of the
    Transformer is schedule=inverse_sqrt, its optimizer optim=adam optim.beta2=0.98 (Vaswani et al., NeurIPS 2017).

    max_tokens       in a batch at most, on the longer side, with what fills it up (8192 in the WAGMA paper)
    label_smoothing  s
    beam             how many beginnings of a translation are followed side by side; 1: the most likely token at a time
    length_penalty   of beams: log P / ((5 + length) / 6)^length_penalty decides
    extra_length     tokens that a translation may have more than its source
    """

    name: str = "translation"
    max_tokens: int = setting(4096, at_least=1)
    label_smoothing: float = setting(0.1, at_least=0, below=1)
    beam: int = setting(1, at_least=1, at_most=_WIDEST_BEAM)
    length_penalty: float = setting(0.6, at_least=0)
    extra_length: int = setting(10, at_least=0, at_most=_MOST_EXTRA)
    reshuffle = True
    drop_last = False
    takes: ClassVar[type[DataDescription]] = SentencePairs
    wants: ClassVar[str] = "pairs of sentences"
    example_data: ClassVar[str] = "synthetic_translation"
    usual: ClassVar[Mapping[str, str]] = {
        "data": "synthetic_translation",
        "partition": "iid",
        "model": "transformer_small",
        "optim": "adam",
        "schedule": "inverse_sqrt",
        "lr": "1e-3",
        "epochs": "6",
    }
    eval_every_epochs: ClassVar[float] = 2.0
    default_num_workers: ClassVar[int] = 4

    def check(self, config: Config) -> None:
        """The data are pairs of sentences, can be split, and the model takes them; a sentence fits into a batch."""
        super().check(config)
        longest = config.data.inspect().longest
        if self.max_tokens <= longest:
            raise ConfigError(
                f"task.max_tokens={self.max_tokens} is too few for a sentence of data.longest={longest} tokens and the "
                f"one that ends it: use task.max_tokens={longest + 1} or more."
            )

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and sentences."""
        from decentral.tasks.problems.translation import Translating

        return Translating(self, config, workers, device)
