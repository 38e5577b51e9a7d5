"""AG's news, sorted by topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decentral.data.text_rows import Row, read_rows
from decentral.data.texts import Corpus, Part, TextFiles
from decentral.data.tokens import TextTokens
from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.settings import setting
from decentral.store.files import at_home

_CLASSES = 4
_SPLIT_SEED = 7600


@dataclass
class AGNews(TextFiles):
    """120,000 and 7,600 news of four topics, titles and descriptions: train.csv and test.csv of the original release.

    Zhang et al., NeurIPS 2015 (arXiv:1509.01626), from Antonio Gulli's corpus of news articles, which may be used for
    research and any other non-commercial activity. The files have a line "class","title","description" for each text,
    classes are 1 to 4, and there is no header.

    path         the folder of the files
    from_test    so many texts of test.csv are for training and the others for testing, where there is no train.csv:
                 drawn class by class, once and for all (null: train.csv is for training)
    tokens       bpe or words, trained on the training texts
    tokenizer    a tokenizer.json instead, of the library tokenizers
    vocabulary   tokens at most, with padding and unknown
    longest      what is longer is cut, in tokens
    """

    name: str = "agnews"
    tokens: TextTokens = TextTokens.bpe
    vocabulary: int = 8000
    from_test: int | None = setting(None, at_least=_CLASSES)

    def files(self) -> list[Path]:
        """train.csv and test.csv, or the latter alone."""
        if self.path is None:
            raise ConfigError("data.path is not set: give the folder that holds train.csv and test.csv of AG News.")
        folder = at_home(self.path)
        found = [folder / f"{name}.csv" for name in (("train", "test") if self.from_test is None else ("test",))]
        for file in found:
            if not file.is_file():
                other = "; data.from_test=6600 does with test.csv alone" if file.stem == "train" else ""
                raise ConfigError(
                    f"data.path={self.path} has no {file.name}: give the folder that holds train.csv and test.csv of "
                    f"AG News{other}."
                )
        return found

    def read(self, files: Sequence[Path]) -> Corpus:
        """Title and description are one text."""
        parts = [_part(file) for file in files]
        if self.from_test is None:
            return Corpus(parts[0], parts[1], _CLASSES)
        return Corpus(*_split(parts[0], self.from_test), _CLASSES)


def _part(file: Path) -> Part:
    rows = list(read_rows(file, (0, 1, 2)))
    if not rows:
        raise ConfigError(f"data.path: {file} is empty.")
    texts = [f"{row.values[1]} {row.values[2]}".replace("\\", " ") for row in rows]
    return Part(texts, [_label(row) for row in rows], [row.where for row in rows])


def _label(row: Row) -> int:
    word = row.values[0].strip()
    if word not in ("1", "2", "3", "4"):
        raise ConfigError(f"data.path: {row.where}: '{word}' is no class of AG News: they are 1, 2, 3 and 4.")
    return int(word) - 1


def _split(part: Part, num_train: int) -> tuple[Part, Part]:
    """So many for training, of each class its share, and the others."""
    labels = np.array(part.labels)
    if num_train >= len(labels):
        raise ConfigError(
            f"data.from_test={num_train} leaves none of the {len(labels)} texts for testing: use a smaller number."
        )
    order = np.empty(len(labels))
    for label in range(_CLASSES):  # places between 0 and 1 in each class, so that all are cut at the same share
        rows = np.flatnonzero(labels == label)
        order[rows] = (numpy_generator(_SPLIT_SEED, "agnews split", label).permutation(len(rows)) + 0.5) / len(rows)
    ranked = np.argsort(order, kind="stable")
    first, rest = np.sort(ranked[:num_train]), np.sort(ranked[num_train:])
    return _chosen(part, first), _chosen(part, rest)


def _chosen(part: Part, rows: np.ndarray) -> Part:
    return Part(*([column[row] for row in rows] for column in part))
