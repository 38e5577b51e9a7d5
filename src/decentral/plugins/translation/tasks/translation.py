"""The settings of task=translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.dataset import DataDescription
from decentral.errors import ConfigError
from decentral.plugins.translation.data.parallel import SentencePairs
from decentral.settings import setting
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch
    from torch import nn

    from decentral.data.dataset import DataSet
    from decentral.tasks.task import Problem, TaskConfig

_WIDEST_BEAM, _MOST_EXTRA = 100, 1000  # beyond, a sentence takes gigabytes, or hours


@dataclass
class Translation(SupervisedTask):
    """Translation: `data` split over the workers by `partition`, `model` trained to write the other language.

        loss = - mean over the tokens y_t of a batch: (1 - s) log p(y_t) + s mean_v log p(v),  s = label_smoothing

    A batch has sentences of similar length (see `Buckets`): at most `batch_size` pairs, and at most max_tokens tokens
    on each side. Each worker draws a random bucket in every step. Batch sizes therefore differ between workers and
    steps, and so do the times of gradients. record_operations=true stores these times;
    cluster.compute.distribution=trace cluster.compute.trace=DIRECTORY uses them for a cluster. An epoch is a pass
    through all pairs; partition=dirichlet makes workers differ in the lengths of their sentences.

    The first metric is uncased BLEU (Papineni et al., ACL 2002) of the models' translations of the test sentences. The
    other metric is the loss in nats per token, without smoothing and given the correct previous tokens. The schedule of
    the Transformer is schedule=inverse_sqrt, its optimizer optim=adam optim.beta2=0.98 (Vaswani et al., NeurIPS 2017).

    max_tokens       maximum number of tokens in a batch, on the longer side, with padding (8192 in the WAGMA paper)
    label_smoothing  label smoothing s
    beam             beam size; 1: greedy decoding
    length_penalty   length penalty of beam search: log P / ((5 + length) / 6)^length_penalty ranks translations
    extra_length     maximum number of tokens by which a translation may exceed its source
    translations     number of test sentences, always the same, whose final translations by the averaged model go to
                     translations.csv; 0: no such file
    """

    name: str = "translation"
    max_tokens: int = setting(4096, at_least=1)
    label_smoothing: float = setting(0.1, at_least=0, below=1)
    beam: int = setting(1, at_least=1, at_most=_WIDEST_BEAM)
    length_penalty: float = setting(0.6, at_least=0)
    extra_length: int = setting(10, at_least=0, at_most=_MOST_EXTRA)
    translations: int = setting(200, at_least=0, volatile=True)
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
    own_batches: ClassVar[bool] = False
    eval_every_epochs: ClassVar[float | None] = 2.0
    default_num_workers: ClassVar[int] = 4

    def check(self, config: TaskConfig) -> None:
        """Check that the data are pairs of sentences and can be split, that the model takes them, and that a sentence
        fits into a batch."""
        super().check(config)
        longest = config.data.inspect().longest
        if self.max_tokens <= longest:
            raise ConfigError(
                f"task.max_tokens={self.max_tokens} is too small for a sentence of data.longest={longest} tokens and "
                f"its end token: use task.max_tokens={longest + 1} or more."
            )

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the local workers' models and sentences."""
        from decentral.plugins.translation.problem import Translating

        return Translating(self, config, workers, device)

    def translate(self, module: nn.Module, sentences: Sequence[str], data: DataSet, evaluation: Any) -> list[str]:
        """Translate sentences with a model. Raises ConfigError for sentences without tokens, or with too many."""
        from decentral.plugins.translation.problem import translate

        return translate(module, sentences, data, self, evaluation)
