"""Texts with labels from files: their common base, your own folders, and AG's news."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.data.dataset import NO_TEST, DivisibleData, LabelledTokens, cached, counts, no_column
from decentral.data.tokens import (
    FILE,
    BytePairs,
    Row,
    Symbols,
    TextTokens,
    check_library,
    read_rows,
    records,
    tokenizer_file,
)
from decentral.errors import ConfigError, suggest
from decentral.randomness import numpy_generator
from decentral.settings import setting
from decentral.store.digests import file_digest, folder_digest
from decentral.store.files import at_home, natural_order

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import TextsInMemory

_MOST_TOKENS = 1_000_000  # of a vocabulary, and of a text: of both there are rows and batches


class Part(NamedTuple):
    """The training texts, or the test texts."""

    texts: list[str]
    labels: list[int]
    """Class numbers."""
    places: list[str]
    """File and line of each text."""


@dataclass
class TextFiles(DivisibleData):
    """Texts with labels from files. A subclass reads them; here they are tokenized, once, into the cache."""

    name: str
    path: str | None = field(default=None, metadata={"content": True})
    tokens: TextTokens = TextTokens.bpe
    tokenizer: str | None = field(default=None, metadata={"content": True})
    vocabulary: int = setting(8000, at_least=3, at_most=_MOST_TOKENS)
    longest: int = setting(128, at_least=1, at_most=_MOST_TOKENS)
    usual_length: ClassVar[float] = 50.0
    """Approximate number of tokens in a text."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files to read, quickly. Raises ConfigError if they are missing."""

    @abstractmethod
    def read(self, files: Sequence[Path]) -> tuple[Part, Part, list[str]]:
        """Return the training and the test texts in these files, and the names of the classes 0, 1, ....

        Raises ConfigError for invalid content, with file and line.
        """

    def files_digest(self) -> str:
        """Return the digest of the files that are read, and of no other files in the folder."""
        files = self.files()
        return folder_digest(files[0].parent, [file.name for file in files])

    def inspect(self) -> LabelledTokens:
        """Return the counts. The first time the texts are read and tokenized, see `prepare`."""
        facts = json.loads((folder := self.prepare()).joinpath("facts.json").read_text(encoding="utf-8"))
        if self.test_share is not None:
            facts |= counts(self.test_share, np.bincount(np.load(folder / "train_labels.npy")).tolist(), 0)
        facts["tokenizer"] = self.tokenizer is not None
        return LabelledTokens(longest=self.longest, usual=min(self.usual_length, self.longest), **facts)

    def prepare(self) -> Path:
        """Train the tokenizer on the training texts, and tokenize all texts."""
        file = tokenizer_file(self.tokenizer)
        if file is not None or self.tokens is TextTokens.bpe:
            check_library(f"data={self.name} with data.tokens=bpe")
        words = f"texts-4 {self!r} {self.files_digest()} {file_digest(file) if file else ''}"
        return cached(f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:16]}", self._build)

    def load(self, device: torch.device | str, seed: int) -> TextsInMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import TextsInMemory

        return TextsInMemory.read(self.prepare(), self.inspect().num_classes, device)

    def _build(self, folder: Path) -> None:
        train, test, names = self.read(self.files())
        encoder: Symbols | BytePairs
        if self.tokenizer is not None:
            encoder = BytePairs.load(at_home(self.tokenizer))
        elif self.tokens is TextTokens.words:
            encoder = Symbols.trained(train.texts, self.vocabulary, words=True)
        else:
            encoder = BytePairs.trained(train.texts, self.vocabulary, running=False)
        vocabulary = self.vocabulary if isinstance(encoder, Symbols) else encoder.vocabulary
        if self.tokenizer is None and vocabulary > self.vocabulary:
            raise ConfigError(
                f"data.vocabulary={self.vocabulary} is too small for these texts, whose characters, padding and "
                f"unknown are {vocabulary} tokens: use at least that."
            )
        encoder.save(folder / FILE)
        facts: dict[str, Any] = {"num_classes": len(names), "names": names}
        facts["vocabulary"] = vocabulary if self.tokenizer else self.vocabulary
        for name, part in (("train", train), ("test", test)):
            try:
                encoded = encoder.encode(part.texts)
            except Exception as error:  # the library raises various errors for an invalid tokenizer
                if self.tokenizer is None:
                    raise
                raise ConfigError(
                    f"data.tokenizer={self.tokenizer} cannot tokenize these texts ({error}): give one with a token "
                    "for unknown words."
                ) from None
            for where, tokens in zip(part.places, encoded, strict=True):
                if not tokens:
                    raise ConfigError(f"data.path: {where}: the text is empty: remove the line, or add text.")
            save_ragged(folder, name, [tokens[: self.longest] for tokens in encoded])
            np.save(folder / f"{name}_labels.npy", np.array(part.labels, dtype=np.int64))
            facts[f"num_{name}"] = len(part.texts)
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def save_ragged(folder: Path, name: str, sequences: Sequence[Sequence[int]]) -> None:
    """Write the concatenated sequences and their lengths."""
    flat = np.fromiter((token for tokens in sequences for token in tokens), dtype=np.int32)
    np.save(folder / f"{name}_tokens.npy", flat)
    np.save(folder / f"{name}_lengths.npy", np.array([len(tokens) for tokens in sequences], dtype=np.int64))


_KINDS, _SPLITS = (".csv", ".jsonl"), ("train", "test")
_GIVE = (
    "give the folder that holds train.csv and test.csv (or .jsonl); data=datasets:load_dataset data.path=FOLDER "
    "data.text=[text] reads files of other names or kinds, such as Parquet"
)


@dataclass
class TextFolder(TextFiles):
    """Your own texts with labels: `path`/train.csv and test.csv with a header, or train.jsonl and test.jsonl; UTF-8.

    path         the folder
    text         columns (keys of JSON objects) of the text; several are concatenated
    label        column of the class; the classes are the labels of the training texts in natural order, 2 before 10
    tokens       bpe or words, trained on the training texts
    tokenizer    a tokenizer.json instead, of the library tokenizers
    vocabulary   maximum number of tokens, with padding and unknown
    longest      maximum length in tokens; longer texts are truncated
    test_share   share of the training texts of each class for testing, if there is no test file; tokens are trained on
                 all of them
    """

    name: str = "textfolder"
    tokens: TextTokens = TextTokens.bpe
    text: list[str] = field(default_factory=lambda: ["text"])
    label: str = "label"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise ConfigError("data.text=[] names no column: give the text columns, such as data.text=[text].")
        if len({*self.text, self.label}) <= len(self.text):
            raise ConfigError(
                f"data.text=[{','.join(self.text)}] and data.label={self.label} share a column: use separate columns "
                "for text and class."
            )

    def files(self) -> list[Path]:
        """Return the first existing file of each split, CSV before JSONL."""
        if self.path is None:
            raise ConfigError(f"data.path is not set: {_GIVE}.")
        folder = at_home(self.path)
        files: list[Path] = []
        for split in _SPLITS:
            file = next((file for kind in _KINDS if (file := folder / f"{split}{kind}").is_file()), None)
            if split == "test" and self.test_share is not None:
                if file is not None:
                    raise ConfigError(
                        f"data.path={self.path} has {file.name}: leave out data.test_share={self.test_share:g}."
                    )
            elif file is None:
                hint = f"; or {NO_TEST}" if files else ""
                raise ConfigError(f"data.path={self.path} has no {split}.csv and no {split}.jsonl: {_GIVE}{hint}.")
            else:
                files.append(file)
        return files

    def read(self, files: Sequence[Path]) -> tuple[Part, Part, list[str]]:
        """Return the columns of the text, joined by spaces."""
        rows = [self._rows(file) for file in (files[0], files[-1])]
        classes = natural_order({row.values[-1] for row in rows[0]})
        numbers = {name: number for number, name in enumerate(classes)}
        for row in rows[1]:
            if row.values[-1] not in numbers:
                raise ConfigError(
                    f"data.path: {row.where}: the class '{row.values[-1]}' does not occur in {files[0].name}."
                    f"{suggest(row.values[-1], classes)}"
                )
        train, test = (
            Part(
                [" ".join(row.values[:-1]) for row in each],
                [numbers[row.values[-1]] for row in each],
                [row.where for row in each],
            )
            for each in rows
        )
        return train, test, classes

    def examples(self, column: str | None) -> tuple[list[Any], list[Any] | None]:
        """Return a column of both files, or their rows as dictionaries."""
        train, *tests = map(records, self.files())
        test = tests[0] if tests else None
        if column is None:
            return train, test
        if column not in train[0]:
            raise no_column(self, column, train[0])
        return [row.get(column) for row in train], [row.get(column) for row in test] if test and column in test[
            0
        ] else None

    def _rows(self, file: Path) -> list[Row]:
        rows = list(read_rows(file, [*self.text, self.label]))
        if not rows:
            raise ConfigError(f"data.path: {file} has no texts: add one row per text.")
        if empty := next((row for row in rows if not row.values[-1].strip()), None):
            raise ConfigError(f"data.path: {empty.where}: '{self.label}' is empty: give a class, or remove the line.")
        return rows


_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_SPLIT_SEED = 7600


@dataclass
class AGNews(TextFiles):
    """120,000 and 7,600 news of four topics, titles and descriptions: train.csv and test.csv of the original release.

    Zhang et al., NeurIPS 2015 (arXiv:1509.01626), from Antonio Gulli's corpus of news articles, which may be used for
    research and any other non-commercial activity. The files have a line "class","title","description" for each text,
    classes are 1 to 4, and there is no header.

    path         the folder of the files
    from_test    without train.csv: number of texts of test.csv for training; the others are for testing, in a fixed
                 draw by class (null: train.csv is for training)
    tokens       bpe or words, trained on the training texts
    tokenizer    a tokenizer.json instead, of the library tokenizers
    vocabulary   maximum number of tokens, with padding and unknown
    longest      maximum length in tokens; longer texts are truncated
    """

    name: str = "agnews"
    tokens: TextTokens = TextTokens.bpe
    vocabulary: int = 8000
    from_test: int | None = setting(None, at_least=len(_CLASSES))

    def files(self) -> list[Path]:
        """Return train.csv and test.csv, or only the latter."""
        if self.path is None:
            raise ConfigError("data.path is not set: give the folder that holds train.csv and test.csv of AG News.")
        folder = at_home(self.path)
        files = [folder / f"{name}.csv" for name in (("train", "test") if self.from_test is None else ("test",))]
        for file in files:
            if not file.is_file():
                other = "; data.from_test=6600 does with test.csv alone" if file.stem == "train" else ""
                raise ConfigError(
                    f"data.path={self.path} has no {file.name}: give the folder that holds train.csv and test.csv of "
                    f"AG News{other}."
                )
        return files

    def read(self, files: Sequence[Path]) -> tuple[Part, Part, list[str]]:
        """Return the texts, with title and description as one text."""
        parts = [_news(file) for file in files]
        if self.from_test is None:
            return parts[0], parts[1], list(_CLASSES)
        return *_split(parts[0], self.from_test), list(_CLASSES)


def _news(file: Path) -> Part:
    rows = list(read_rows(file, (0, 1, 2)))
    if not rows:
        raise ConfigError(f"data.path: {file} is empty.")
    for row in rows:
        if row.values[0].strip() not in ("1", "2", "3", "4"):
            raise ConfigError(f"data.path: {row.where}: '{row.values[0]}' is not a class of AG News: use 1, 2, 3 or 4.")
    texts = [f"{row.values[1]} {row.values[2]}".replace("\\", " ") for row in rows]
    return Part(texts, [int(row.values[0]) - 1 for row in rows], [row.where for row in rows])


def _split(part: Part, num_train: int) -> tuple[Part, Part]:
    """Split into `num_train` training texts, stratified by class, and the others."""
    labels = np.array(part.labels)
    if num_train >= len(labels):
        raise ConfigError(
            f"data.from_test={num_train} uses all {len(labels)} texts for training: use a smaller number."
        )
    order = np.empty(len(labels))
    for label in range(len(_CLASSES)):  # relative positions in each class, so that all are cut at the same share
        rows = np.flatnonzero(labels == label)
        order[rows] = (numpy_generator(_SPLIT_SEED, "agnews split", label).permutation(len(rows)) + 0.5) / len(rows)
    ranked = np.argsort(order, kind="stable")
    train, test = (
        Part(*([column[row] for row in np.sort(rows)] for column in part))
        for rows in (ranked[:num_train], ranked[num_train:])
    )
    return train, test
