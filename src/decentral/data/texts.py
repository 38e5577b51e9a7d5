"""Texts with labels that are read from files: what such data sets share."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from decentral.data import tokens as tokens_of
from decentral.data.cache import cache_folder, cached
from decentral.data.dataset import DataSet
from decentral.data.description import LabelledTokens
from decentral.data.tokens import BytePairs, Encoder, Symbols, TextTokens
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.digests import file_digest, folder_digest
from decentral.store.files import at_home

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.texts import TextsInMemory

_MOST_TOKENS = 1_000_000  # of a vocabulary, and of a text: of both there are rows and batches


class Part(NamedTuple):
    """The training texts, or the test texts."""

    texts: list[str]
    labels: list[int]
    """Numbers of classes."""
    places: list[str]
    """Where each stands: file and line."""


class Corpus(NamedTuple):
    """A data set of texts as it was read."""

    train: Part
    test: Part
    num_classes: int


@dataclass
class TextFiles(DataSet):
    """Texts with labels from files. A subclass reads them; here they become tokens, once, in the cache."""

    name: str
    path: str | None = field(default=None, metadata={"content": True})
    tokens: TextTokens = TextTokens.bpe
    tokenizer: str | None = field(default=None, metadata={"content": True})
    vocabulary: int = setting(8000, at_least=3, at_most=_MOST_TOKENS)
    longest: int = setting(128, at_least=1, at_most=_MOST_TOKENS)
    usual_length: ClassVar[float] = 50.0
    """Tokens in a text, about."""

    @abstractmethod
    def files(self) -> list[Path]:
        """What is read, quickly. Raises ConfigError if it is not there."""

    @abstractmethod
    def read(self, files: Sequence[Path]) -> Corpus:
        """The texts in these files. Raises ConfigError for what is wrong in them, with file and line."""

    def files_digest(self) -> str:
        """Of the files that are read, and of no others beside them."""
        files = self.files()
        return folder_digest(files[0].parent, [file.name for file in files])

    def inspect(self) -> LabelledTokens:
        """Counts; of files that were not prepared it reads all of them, once in a process."""
        known = cache_folder() / self._folder_name() / "facts.json"
        if known.is_file():
            num_train, num_test, num_classes = json.loads(known.read_text(encoding="utf-8"))
        else:
            corpus = self._corpus()
            num_train, num_test, num_classes = len(corpus.train.texts), len(corpus.test.texts), corpus.num_classes
        return LabelledTokens(
            num_train=num_train,
            num_test=num_test,
            num_classes=num_classes,
            vocabulary=self._vocabulary(),
            longest=self.longest,
            usual=min(self.usual_length, self.longest),
        )

    def prepare(self) -> None:
        """Trains the tokenizer on the training texts, and cuts all of them into tokens."""
        self._prepared()

    def load(self, device: torch.device | str, seed: int) -> TextsInMemory:
        """See `DataSet`."""
        from decentral.data.loading.texts import TextsInMemory

        return TextsInMemory.read(self._prepared(), self.inspect().num_classes, device)

    def _vocabulary(self) -> int:
        if self.tokenizer is None:
            return self.vocabulary
        return _size_of(self.tokenizer, file_digest(at_home(self.tokenizer)))

    def _prepared(self) -> Path:
        return cached(self._folder_name(), self._build)

    def _folder_name(self) -> str:
        self._check_tokens()
        tokenizer = file_digest(at_home(self.tokenizer)) if self.tokenizer else ""
        words = f"texts-2 {self!r} {self.files_digest()} {tokenizer}"
        return f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"

    def _check_tokens(self) -> None:
        if self.tokenizer is not None and not at_home(self.tokenizer).is_file():
            raise ConfigError(f"data.tokenizer={self.tokenizer} is no file: give a tokenizer.json, or leave it out.")
        if self.tokenizer is not None or self.tokens is TextTokens.bpe:
            tokens_of.check_library(f"data={self.name} with data.tokens=bpe")

    def _corpus(self) -> Corpus:
        return _read(type(self), self._folder_name(), repr(self), _Again(self))

    def _encoder(self, texts: Sequence[str]) -> Encoder:
        if self.tokenizer is not None:
            return BytePairs.load(at_home(self.tokenizer))
        if self.tokens is TextTokens.words:
            return Symbols.trained(texts, self.vocabulary, words=True)
        return BytePairs.trained(texts, self.vocabulary, running=False)

    def _build(self, folder: Path) -> None:
        corpus = self._corpus()
        encoder = self._encoder(corpus.train.texts)
        if isinstance(encoder, BytePairs) and self.tokenizer is None and encoder.vocabulary > self.vocabulary:
            raise ConfigError(
                f"data.vocabulary={self.vocabulary} is too small for these texts, whose characters alone are "
                f"{encoder.vocabulary} tokens with padding and unknown: use that or more."
            )
        encoder.save(folder / tokens_of.FILE)
        for name, part in (("train", corpus.train), ("test", corpus.test)):
            try:
                encoded = encoder.encode(part.texts)
            except Exception as error:  # whatever the library says of a tokenizer
                if self.tokenizer is None:
                    raise
                raise ConfigError(
                    f"data.tokenizer={self.tokenizer} cannot cut these texts ({error}): give one that has a token for "
                    "what it does not know."
                ) from None
            for where, tokens in zip(part.places, encoded, strict=True):
                if not tokens:
                    raise ConfigError(f"data.path: {where}: there is no text: remove the line, or write something.")
            save_ragged(folder, name, [tokens[: self.longest] for tokens in encoded])
            np.save(folder / f"{name}_labels.npy", np.array(part.labels, dtype=np.int64))
        facts = [len(corpus.train.texts), len(corpus.test.texts), corpus.num_classes]
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def save_ragged(folder: Path, name: str, sequences: Sequence[Sequence[int]]) -> None:
    """Sequences of different lengths, one after the other, and how long each is."""
    flat = np.fromiter((token for tokens in sequences for token in tokens), dtype=np.int32)
    np.save(folder / f"{name}_tokens.npy", flat)
    np.save(folder / f"{name}_lengths.npy", np.array([len(tokens) for tokens in sequences], dtype=np.int64))


class _Again:
    """A data set that is equal to any other in a cache: what it reads depends on the other arguments."""

    def __init__(self, data: TextFiles) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Again)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=4)
def _read(cls: type, stamp: str, settings: str, data: _Again) -> Corpus:
    return data.data.read(data.data.files())


@lru_cache(maxsize=16)
def _size_of(path: str, _digest: str) -> int:
    return BytePairs.load(at_home(path)).vocabulary
