"""DistilBERT, by the library transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decentral.data.description import DataDescription
from decentral.errors import ConfigError
from decentral.host.packages import require
from decentral.models.model import TextModel
from decentral.models.transformer_sizes import check_heads, transformer_multiplications
from decentral.settings import setting
from decentral.store.files import at_home

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.description import LabelledTokens

_HUB = "distilbert-base-uncased"


@dataclass
class DistilBert(TextModel):
    """DistilBERT with a layer for classes (Sanh et al., 2019, arXiv:1910.01108), as transformers builds it.

    Random, or fine-tuned from weights in a folder. Those of distilbert-base-uncased have 30,522 tokens: use them with
    the tokenizer.json that lies beside them, data.tokenizer=FOLDER/tokenizer.json. Nothing is downloaded unless
    model.download=true.

    path      a folder with config.json and weights, as transformers saves them (null: random weights)
    download  distilbert-base-uncased from the Hugging Face Hub, where `path` is not given
    dim       numbers for each token; like the next ones for random weights only
    layers    how many
    heads     of the attention
    hidden    numbers between the two products of a layer
    dropout   in training, also of the attention
    """

    name: str = "distilbert"
    path: str | None = field(default=None, metadata={"content": True})
    download: bool = False
    dim: int = setting(768, at_least=1)
    layers: int = setting(6, at_least=1)
    heads: int = setting(12, at_least=1)
    hidden: int = setting(3072, at_least=1)
    dropout: float = setting(0.1, at_least=0, below=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)

    def check(self, data: DataDescription) -> None:
        """Raise ConfigError if the library is missing, or there is no model in the folder."""
        super().check(data)
        require(
            "transformers", "model=distilbert", "pip install 'decentral[distilbert]', or use model=text_transformer"
        )
        if self.path is not None and not (at_home(self.path) / "config.json").is_file():
            raise ConfigError(f"model.path={self.path} has no config.json: give a folder that transformers has saved.")

    def multiplications(self, data: LabelledTokens) -> float:
        """Of the products with weights, and of the attention."""
        return transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)

    def build(self, data: LabelledTokens) -> nn.Module:
        """Tokens [B, L] -> logits [B, num_classes]. Raises ConfigError if the weights are for other tokens."""
        from transformers import DistilBertConfig, DistilBertForSequenceClassification

        from decentral.models.layers.pretrained import WithoutPadding

        if self.path is None and not self.download:
            shape: Any = DistilBertConfig
            shape = shape(
                vocab_size=data.vocabulary,
                max_position_embeddings=data.longest,
                dim=self.dim,
                n_layers=self.layers,
                n_heads=self.heads,
                hidden_dim=self.hidden,
                dropout=self.dropout,
                attention_dropout=self.dropout,
                seq_classif_dropout=self.dropout,
                num_labels=data.num_classes,
            )
            return WithoutPadding(DistilBertForSequenceClassification(shape)).train()
        where = self._where()
        known = DistilBertConfig.from_pretrained(where, local_files_only=not self.download)
        for key, ours, theirs in (
            ("data.vocabulary", data.vocabulary, known.vocab_size),
            ("data.longest", data.longest, known.max_position_embeddings),
        ):
            if ours > theirs:
                raise ConfigError(
                    f"model.path={where} is a model for {theirs} tokens, and {key} is {ours}: give its tokenizer.json "
                    f"as data.tokenizer, and data.longest={known.max_position_embeddings} or less."
                )
        module = DistilBertForSequenceClassification.from_pretrained(
            where, local_files_only=not self.download, num_labels=data.num_classes
        )
        return WithoutPadding(module.float()).train()

    def _where(self) -> str:
        return _HUB if self.path is None else str(at_home(self.path))
