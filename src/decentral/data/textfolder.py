"""Texts of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decentral.data.text_rows import Row, read_rows
from decentral.data.texts import Corpus, Part, TextFiles
from decentral.data.tokens import TextTokens
from decentral.errors import ConfigError, suggest
from decentral.store.files import at_home

_KINDS = (".csv", ".jsonl")


@dataclass
class TextFolder(TextFiles):
    """Your own texts with labels: `path`/train.csv and test.csv with a header, or train.jsonl and test.jsonl; UTF-8.

    path         the folder
    text         the columns (keys of JSON objects) of the text; several are put one after the other
    label        the column of the class: the classes are what occurs there in the training texts, sorted
    tokens       bpe or words, trained on the training texts
    tokenizer    a tokenizer.json instead, of the library tokenizers
    vocabulary   tokens at most, with padding and unknown
    longest      what is longer is cut, in tokens
    """

    name: str = "textfolder"
    tokens: TextTokens = TextTokens.bpe
    text: list[str] = field(default_factory=lambda: ["text"])
    label: str = "label"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise ConfigError("data.text=[] names no column: give those of the text, such as data.text=[text].")
        if len({*self.text, self.label}) <= len(self.text):
            raise ConfigError(
                f"data.text=[{','.join(self.text)}] and data.label={self.label} name a column twice: the text and the "
                "class have to be in columns of their own."
            )

    def files(self) -> list[Path]:
        """Of each split the first that is there, CSV before JSONL."""
        if self.path is None:
            raise ConfigError("data.path is not set: give the folder that holds train.csv and test.csv (or .jsonl).")
        folder = at_home(self.path)
        found = []
        for split in ("train", "test"):
            file = next((file for kind in _KINDS if (file := folder / f"{split}{kind}").is_file()), None)
            if file is None:
                raise ConfigError(
                    f"data.path={self.path} has no {split}.csv and no {split}.jsonl: give the folder that holds "
                    "train.csv and test.csv (or .jsonl)."
                )
            found.append(file)
        return found

    def read(self, files: Sequence[Path]) -> Corpus:
        """The columns of the text, joined by spaces."""
        rows = [self._rows(file) for file in files]
        classes = sorted({row.values[-1] for row in rows[0]})
        numbers = {name: number for number, name in enumerate(classes)}
        for row in rows[1]:
            if row.values[-1] not in numbers:
                raise ConfigError(
                    f"data.path: {row.where}: the class '{row.values[-1]}' does not occur in {files[0].name}."
                    f"{suggest(row.values[-1], classes)}"
                )
        train, test = (_part(each, numbers) for each in rows)
        return Corpus(train, test, len(classes))

    def _rows(self, file: Path) -> list[Row]:
        rows = list(read_rows(file, [*self.text, self.label]))
        if not rows:
            raise ConfigError(f"data.path: {file} has no texts: it needs a row for each.")
        if empty := next((row for row in rows if not row.values[-1].strip()), None):
            raise ConfigError(f"data.path: {empty.where}: '{self.label}' is empty: name a class, or remove the line.")
        return rows


def _part(rows: list[Row], numbers: dict[str, int]) -> Part:
    texts = [" ".join(row.values[:-1]) for row in rows]
    return Part(texts, [numbers[row.values[-1]] for row in rows], [row.where for row in rows])
