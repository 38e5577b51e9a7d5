"""Data sets of the library datasets: data=datasets:load_dataset, or load_from_disk for what save_to_disk wrote."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.data.dataset import NO_TEST, DataDescription, no_column
from decentral.data.decode import resize_and_crop
from decentral.data.own import PlainData
from decentral.data.texts import Part, TextFiles
from decentral.data.tokens import TextTokens
from decentral.errors import ConfigError
from decentral.registry import blame
from decentral.settings import setting
from decentral.store.files import natural_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


@dataclass(kw_only=True)
class HuggingFace(PlainData):
    """A data set of the library datasets: images (or vectors) with labels, or texts with labels.

    config      `name` of one of the data set's configurations, such as those of glue
    train       training split
    test        test split
    image       column of the inputs: images, converted to [C, H, W] from 0 to 1, or lists of numbers
    text        columns of the text instead, as in [sentence]; several are concatenated
    label       column of the class, a whole number >= 0, or text: its classes are in natural order, 2 before 10
    image_mode  convert all images to L (gray) or RGB (null: gray images stay gray)
    image_size  resize the shorter side of images to this many pixels, and crop them to a square
    tokens, tokenizer, vocabulary, longest    settings of texts, as for data=textfolder
    cache_dir   the library's download folder
    """

    config: str | None = None
    train: str = "train"
    test: str = "test"
    image: str = "image"
    text: list[str] = field(default_factory=list)
    label: str = "label"
    image_mode: str | None = setting(None, choices=("L", "RGB"), older=None)
    image_size: int | None = setting(None, at_least=1)
    tokens: TextTokens = TextTokens.bpe
    tokenizer: str | None = None
    vocabulary: int = setting(8000, at_least=3)
    longest: int = setting(128, at_least=1)
    cache_dir: str | None = setting(None, volatile=True)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the function."""
        return super().settings() | ({} if self.config is None else {"name": self.config})

    def called(self) -> Any:
        """Return the two splits as pairs of inputs and classes."""
        splits = self._splits()
        names = self._names(splits)
        made = tuple(Rows(rows, self, names) for rows in splits)
        return made if self.test_share is None else made[0]

    def _names(self, splits: Sequence[Any]) -> list[str]:
        """Return the names of the classes: labels that are texts, or those that the data set knows, if any."""
        labels = [label for rows in splits for label in rows[self.label]]
        if any(isinstance(label, str) and not label.isdecimal() for label in labels):
            return natural_order({*map(str, labels)})
        feature = (getattr(splits[0], "features", None) or {}).get(self.label)
        return list(getattr(feature, "names", None) or ())

    def _splits(self) -> Sequence[Any]:
        """Return the two splits, each with its columns. Raises ConfigError for a missing split or column."""
        columns = [*(self.text or [self.image]), self.label]
        with blame.named(f"data={self.name} cannot be loaded"):
            found = super().called()
        if not isinstance(found, dict):
            found = {self.train: found}
        chosen = (self.train,) if self.test_share is not None else (self.train, self.test)
        if self.test_share is not None and isinstance(found, dict) and self.test in found:
            raise ConfigError(
                f"data={self.name} has the split {self.test}: leave out data.test_share={self.test_share:g}."
            )
        for split in chosen:
            if split not in found:
                raise ConfigError(
                    f"data={self.name} has the splits {', '.join(map(str, found))}, not {split}: select splits with "
                    f"data.train= and data.test=; or {NO_TEST}."
                )
            names = list(getattr(found[split], "column_names", None) or ())
            for column in columns:
                if column not in names:
                    raise ConfigError(
                        f"data={self.name} has no column {column} in {split}, but {', '.join(names)}: select columns "
                        "with data.image= (or data.text=) and data.label=."
                    )
        return [found[split] for split in chosen]

    def _made(self) -> Any:
        return self._texts() if self.text else super()._made()

    def _texts(self) -> Texts:
        splits = self._splits()
        names = self._names(splits)
        parts = [
            Part(
                [" ".join(map(str, row)) for row in zip(*(rows[column] for column in self.text), strict=True)],
                [int(label) for label in numbered(rows[self.label], names)],
                [f"{split}, row {number}" for number in range(len(rows))],
            )
            for split, rows in zip((self.train, self.test), splits, strict=False)
        ]
        if any(not part.texts or min(part.labels) < 0 for part in parts):
            raise ConfigError(f"data={self.name} has a split without texts, or labels below 0: choose another column.")
        settings = {key: getattr(self, key) for key in ("tokens", "tokenizer", "vocabulary", "longest")}
        largest = max(label for part in parts for label in part.labels)
        names += [str(number) for number in range(len(names), largest + 1)]
        return Texts(name="datasets", parts=parts, classes=names, test_share=self.test_share, **settings)

    def inspect(self) -> DataDescription:  # type: ignore[override]
        """See `DataSet`."""
        return self._sets().inspect() if self.text else super().inspect()

    def prepare(self) -> Path | None:  # type: ignore[override]
        """See `DataSet`."""
        return self._sets().prepare() if self.text else super().prepare()

    def load(self, device: torch.device | str, seed: int) -> Any:
        """See `DataSet`."""
        return self._sets().load(device, seed) if self.text else super().load(device, seed)

    def examples(self, column: str | None) -> tuple[Any, Any]:
        """Return a column of both splits, or the splits, whose rows are dictionaries."""
        splits = [*self._splits(), None][:2]
        if column is None:
            return splits[0], splits[1]
        if column not in splits[0].column_names:
            raise no_column(self, column, splits[0].column_names)
        has = [rows is not None and column in rows.column_names for rows in splits]
        return splits[0][column], splits[1][column] if has[1] else None

    def files_digest(self) -> str:
        """Return a digest of all texts, or of the inspected examples and labels."""
        return self._sets().files_digest() if self.text else super().files_digest()

    def notes(self) -> tuple[str, ...]:
        """See `PlainData`."""
        return () if self.text else super().notes()


@dataclass(kw_only=True)
class Texts(TextFiles):
    """Texts that are already in memory."""

    parts: list[Part] = field(repr=False)
    classes: list[str]

    def files(self) -> list[Path]:
        """Return no files."""
        return []

    def files_digest(self) -> str:
        """Return the digest of the texts and labels."""
        return hashlib.sha256(json.dumps([part[:2] for part in self.parts]).encode()).hexdigest()[:16]

    def read(self, files: Sequence[Path]) -> tuple[Part, Part, list[str]]:
        """Return the texts and the classes."""
        return self.parts[0], self.parts[-1], self.classes


def numbered(labels: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return labels as numbers: a text's index among the names, or its value; a boolean as 0 or 1."""
    places = {name: place for place, name in enumerate(names)}
    texts = {label: places[label] if label in places else int(label) for label in labels if isinstance(label, str)}
    numbers = (texts[label] if isinstance(label, str) else label for label in labels)
    return [int(number) if isinstance(number, bool) else number for number in numbers]


class Rows:
    """A split as a map-style data set of pairs (tensor, label)."""

    def __init__(self, rows: Any, of: HuggingFace, names: list[str]) -> None:
        self._rows, self._of = rows, of
        self.targets = numbered(rows[of.label], names)
        if names:
            self.classes = names

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Any]:
        import torch

        row = self._rows[int(i)]
        return torch.from_numpy(self._array(row[self._of.image])), self.targets[int(i)]

    def _array(self, value: Any) -> np.ndarray:
        """Convert to float32: an image to [C, H, W] from 0 to 1, other numbers unchanged."""
        import numpy as np

        if not hasattr(value, "convert"):
            return np.asarray(value, dtype=np.float32)
        size = self._of.image_size
        mode = self._of.image_mode or ("L" if value.mode == "L" else "RGB")
        image = value if value.mode == mode else value.convert(mode)
        pixels = np.asarray(image if size is None else resize_and_crop(image, size, size), dtype=np.float32) / 255
        return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
