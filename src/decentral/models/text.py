"""Networks for texts: classification, and prediction of the next token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from decentral.data.dataset import PADDING, DataDescription
from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.models.model import LanguageModel, Model, TextModel
from decentral.settings import setting
from decentral.store.files import at_home

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.dataset import LabelledTokens, NextTokens


def check_heads(dim: int, heads: int) -> None:
    """Raise ConfigError unless `heads` divides `dim`."""
    if dim % heads:
        raise ConfigError(f"model.dim={dim} is not divisible by model.heads={heads}: use a multiple of {heads}.")


def transformer_multiplications(length: float, dim: int, layers: int, hidden: int) -> float:
    """Return the multiplications of a forward pass for a sequence: in each layer L d (4 d + 2 h) with weights and 2 L^2
    d of the attention."""
    return layers * (length * dim * (4 * dim + 2 * hidden) + 2 * length**2 * dim)


@dataclass
class FastText(TextModel):
    """The mean of the embeddings of a text's tokens, and a linear layer (Joulin et al., EACL 2017, arXiv:1607.01759).

    Embeddings are initially uniform in [-1 / dim, 1 / dim]; the linear layer has torch's initial values. Departures: no
    n-gram features, and an ordinary softmax instead of a hierarchical one.

    dim   embedding dimension
    """

    name: str = "fasttext"
    dim: int = setting(64, at_least=1)

    def multiplications(self, data: LabelledTokens) -> float:
        """Return the multiplications: one for each number of each embedding, and those of the linear layer."""
        return self.dim * (data.usual + data.num_classes)

    def build(self, data: LabelledTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, num_classes]."""
        from torch import nn

        embeddings = nn.EmbeddingBag(data.vocabulary, self.dim, mode="mean", padding_idx=PADDING)
        nn.init.uniform_(embeddings.weight, -1 / self.dim, 1 / self.dim)
        return nn.Sequential(embeddings, nn.Linear(self.dim, data.num_classes))


@dataclass
class SmallTransformer(Model):
    """The settings of the Transformers below."""

    name: str
    dim: int = setting(64, at_least=1)
    layers: int = setting(2, at_least=1)
    heads: int = setting(4, at_least=1)
    hidden: int = setting(128, at_least=1)
    dropout: float = setting(0.0, at_least=0, below=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)

    def multiplications(self, data: Any) -> float:
        """Return the multiplications of the products with weights, and of the attention."""
        return transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)


@dataclass
class TextTransformer(SmallTransformer, TextModel):
    """Transformer encoder with layer normalization before each part, as in Xiong et al., ICML 2020 (arXiv:2002.04745).

    Embeddings of tokens and of their positions are added. Each of `layers` layers computes x <- x + attention(norm(x)),
    x <- x + W2 gelu(W1 norm(x)). The normalized mean over the tokens of the text goes through a linear layer. Padding
    is ignored.

    dim      model dimension
    layers   number of layers
    heads    number of attention heads, which divides dim
    hidden   width of the feed-forward layer, between W1 and W2
    dropout  dropout after attention and W2, in training
    """

    name: str = "text_transformer"

    def build(self, data: LabelledTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, num_classes]."""
        from decentral.models.layers.transformer import TextEncoder

        sizes = self.dim, self.layers, self.heads, self.hidden, self.dropout
        return TextEncoder(data.vocabulary, data.longest, data.num_classes, *sizes)


@dataclass
class CharLSTM(LanguageModel):
    """Embeddings, an LSTM and a linear layer, for any tokens; every window begins with a state of zeros.

    With dim=8, hidden=256 and layers=2 it is the network of McMahan et al., AISTATS 2017 (arXiv:1602.05629).

    dim      embedding dimension
    hidden   size of a layer's state
    layers   number of layers
    """

    name: str = "char_lstm"
    dim: int = setting(32, at_least=1)
    hidden: int = setting(128, at_least=1)
    layers: int = setting(1, at_least=1)

    def multiplications(self, data: NextTokens) -> float:
        """Return the multiplications: 4 h (d + h) for each token in the first layer, 8 h^2 in the others, and those of
        the outputs."""
        first, others = 4 * self.hidden * (self.dim + self.hidden), 8 * self.hidden**2 * (self.layers - 1)
        return data.usual * (first + others + self.hidden * data.vocabulary)

    def build(self, data: NextTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import Recurrent

        return Recurrent(data.vocabulary, self.dim, self.hidden, self.layers)


@dataclass
class CharTransformer(SmallTransformer, LanguageModel):
    """Transformer decoder with layer normalization before each part, as GPT-2 (Radford et al., 2019), for any tokens.

    It is like model=text_transformer, but a token attends only to itself and to previous tokens, and every position has
    an output.

    dim      model dimension
    layers   number of layers
    heads    number of attention heads, which divides dim
    hidden   width of the feed-forward layer
    dropout  dropout after attention and the feed-forward layer, in training
    """

    name: str = "char_transformer"

    def multiplications(self, data: NextTokens) -> float:
        """Return the multiplications of the layers, and of the outputs."""
        return super().multiplications(data) + data.usual * self.dim * data.vocabulary

    def build(self, data: NextTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import NextToken

        sizes = self.dim, self.layers, self.heads, self.hidden, self.dropout
        return NextToken(data.vocabulary, data.longest, *sizes)


class Positions(Enum):
    """Encoding of a token's position.

    learned   an embedding of each position, added to that of the token
    rotary    queries and keys, rotated by angles p 10000^(-2j / d_head) at position p (Su et al., arXiv:2104.09864)
    """

    learned = "learned"
    rotary = "rotary"


@dataclass
class GPT(LanguageModel):
    """GPT-2 (Radford et al., 2019): a decoder with layer normalization before each part, for any tokens.

    Each of `layers` layers computes x <- x + attention(norm(x)), x <- x + W2 gelu(W1 norm(x)) with W1 [4 dim, dim]; a
    token attends to itself and to previous tokens. The output layer is the embedding of the tokens. Initial weights are
    N(0, 0.02^2), those of the last matrix of attention and of W2 N(0, 0.02^2 / (2 layers)), biases 0. There are V dim +
    12 layers dim^2 + (13 layers + 2) dim parameters for V tokens, and data.longest dim more for learned positions.

    The sizes of gpt_124m are GPT-2's: 124,439,808 parameters with data.vocabulary=50257 data.longest=1024. gpt_1m,
    gpt_10m and gpt_30m are named by the parameters of their layers, without embeddings. With optim=muon the matrices of
    the layers belong to Muon, embeddings and vectors to AdamW. Departures: no dropout, and the exact gelu.

    positions  learned or rotary
    dim        model dimension
    layers     number of layers
    heads      number of attention heads, which divides dim (rotary: into even parts)
    """

    name: str = "gpt"
    positions: Positions = Positions.learned
    dim: int = setting(144, at_least=1)
    layers: int = setting(4, at_least=1)
    heads: int = setting(4, at_least=1)

    def __post_init__(self) -> None:
        check_heads(self.dim, self.heads)
        if self.positions is Positions.rotary and self.dim // self.heads % 2:
            raise ConfigError(
                f"model.positions=rotary rotates pairs, but heads have model.dim / model.heads = "
                f"{self.dim // self.heads} numbers: use an even quotient, or model.positions=learned."
            )

    def multiplications(self, data: NextTokens) -> float:
        """Return the multiplications of the layers, and of the outputs."""
        layers = transformer_multiplications(data.usual, self.dim, self.layers, 4 * self.dim)
        return layers + data.usual * self.dim * data.vocabulary

    def build(self, data: NextTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, L, vocabulary]."""
        from decentral.models.layers.transformer import GPT as Network

        rotary = self.positions is Positions.rotary
        return Network(data.vocabulary, data.longest, self.dim, self.layers, self.heads, rotary)


_HUB = "distilbert-base-uncased"


@dataclass
class DistilBert(TextModel):
    """DistilBERT with a classification layer (Sanh et al., 2019, arXiv:1910.01108), as transformers builds it.

    The weights are random, or from a folder and then fine-tuned. Those of distilbert-base-uncased have 30,522 tokens:
    use them with the tokenizer.json in the same folder, data.tokenizer=FOLDER/tokenizer.json. Nothing is downloaded
    unless model.download=true.

    path      a folder with config.json and weights, as saved by transformers (null: random weights)
    download  download distilbert-base-uncased from the Hugging Face Hub if `path` is not given
    dim       model dimension; this and the following settings apply to random weights only
    layers    number of layers
    heads     number of attention heads
    hidden    width of the feed-forward layer
    dropout   dropout in training, also of the attention
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
        require("transformers", "model=distilbert", "pip install '.[distilbert]', or use model=text_transformer")
        if self.path is not None and not (at_home(self.path) / "config.json").is_file():
            raise ConfigError(f"model.path={self.path} has no config.json: give a folder saved by transformers.")

    def multiplications(self, data: LabelledTokens) -> float:
        """Return the multiplications of the products with weights, and of the attention."""
        return transformer_multiplications(data.usual, self.dim, self.layers, self.hidden)

    def build(self, data: LabelledTokens) -> nn.Module:
        """Build the network: tokens [B, L] -> logits [B, num_classes]. Raises ConfigError if the weights are for other
        tokens."""
        from transformers import DistilBertConfig, DistilBertForSequenceClassification

        from decentral.models.layers.transformer import WithoutPadding

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
        where = _HUB if self.path is None else str(at_home(self.path))
        known = DistilBertConfig.from_pretrained(where, local_files_only=not self.download)
        for key, ours, theirs in (
            ("data.vocabulary", data.vocabulary, known.vocab_size),
            ("data.longest", data.longest, known.max_position_embeddings),
        ):
            if ours > theirs:
                raise ConfigError(
                    f"model.path={where} is a model for {theirs} tokens, but {key} is {ours}: give its tokenizer.json "
                    f"as data.tokenizer, and data.longest={known.max_position_embeddings} or less."
                )
        module = DistilBertForSequenceClassification.from_pretrained(
            where, local_files_only=not self.download, num_labels=data.num_classes
        )
        return WithoutPadding(module.float()).train()
