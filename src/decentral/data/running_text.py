"""Running text from several sources: what such data sets share."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.data import tokens as tokens_of
from decentral.data.cache import cached
from decentral.data.dataset import DataSet
from decentral.data.description import NextTokens
from decentral.data.texts import save_ragged
from decentral.data.tokens import BytePairs, Encoder, RunningTokens, Symbols
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.digests import file_digest, folder_digest
from decentral.store.files import at_home

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.running_text import Windows


class Source(NamedTuple):
    """A file, a speaker, a section."""

    name: str
    text: str


@dataclass
class RunningText(DataSet):
    """Text of several sources, each with a part for training and, at its end, one for testing; cut into windows.

    A subclass finds the sources. A window is `longest` tokens and the one that follows; the next one begins where it
    ends, and the last one of a source is shorter. Tokens are trained on the training parts of all sources.
    """

    name: str
    path: str | None = field(default=None, metadata={"content": True})
    tokens: RunningTokens = RunningTokens.characters
    vocabulary: int = setting(1000, at_least=3)
    longest: int = setting(64, at_least=1)
    test_share: float = setting(0.1, at_least=0, below=1)

    @abstractmethod
    def sources(self) -> list[Source]:
        """The text, source by source. Raises ConfigError if it is not there, or not UTF-8, with file and line."""

    @abstractmethod
    def files(self) -> list[Path]:
        """What is read. Raises ConfigError if it is not there."""

    def files_digest(self) -> str:
        """Of the files that are read in a folder, and of no others beside them."""
        if self.path is None or not (folder := at_home(self.path)).is_dir():
            return ""
        return folder_digest(folder, [file.name for file in self.files()])

    def inspect(self) -> NextTokens:
        """Counts. The first time the text is read and cut into tokens, which takes a second for some MB."""
        facts = json.loads((self._prepared() / "facts.json").read_text(encoding="utf-8"))
        return NextTokens(longest=self.longest, usual=float(self.longest), **facts)

    def prepare(self) -> None:
        """Trains the tokens, and cuts the text into them."""
        self._prepared()

    def load(self, device: torch.device | str, seed: int) -> Windows:
        """See `DataSet`."""
        from decentral.data.loading.running_text import Windows

        return Windows(self._prepared(), self.inspect(), device)

    def _prepared(self) -> Path:
        if self.tokens is RunningTokens.bpe:
            tokens_of.check_library("data.tokens=bpe")
        words = f"running-2 {self!r} {self.files_digest()} {[file_digest(file) for file in self.files()]}"
        return cached(f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:16]}", self._build)

    def _encoder(self, texts: Sequence[str]) -> Encoder:
        if self.tokens is RunningTokens.characters:
            return Symbols.trained(texts, self.vocabulary, words=False)
        return BytePairs.trained(texts, self.vocabulary, running=True)

    def _build(self, folder: Path) -> None:
        sources = self.sources()
        cuts = [round(len(source.text) * (1 - self.test_share)) for source in sources]
        parts = {
            "train": [source.text[:cut] for source, cut in zip(sources, cuts, strict=True)],
            "test": [source.text[cut:] for source, cut in zip(sources, cuts, strict=True)],
        }
        encoder = self._encoder(parts["train"])
        encoder.save(folder / tokens_of.FILE)
        lengths = encoder.lengths()
        facts: dict[str, Any] = {"vocabulary": len(lengths), "num_sources": len(sources)}
        for split, texts in parts.items():
            windows, labels = [], []
            for number, tokens in enumerate(encoder.encode(texts)):
                found = list(cut_windows(tokens, self.longest))
                windows += found
                labels += [number] * len(found)
            if not windows:
                raise ConfigError(
                    f"data={self.name} has too little text: there is nothing for {split}ing in {len(sources)} sources "
                    f"with data.test_share={self.test_share:g}."
                )
            save_ragged(folder, split, windows)
            np.save(folder / f"{split}_labels.npy", np.array(labels, dtype=np.int64))
            facts[f"num_{split}"] = len(windows)
        np.save(folder / "characters.npy", np.array(lengths, dtype=np.int64))
        (folder / "sources.json").write_text(json.dumps([source.name for source in sources]), encoding="utf-8")
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def cut_windows(tokens: Sequence[int], longest: int) -> Iterator[Sequence[int]]:
    """Pieces of `longest` tokens and the one that follows, so that every token but the first is a target once."""
    for start in range(0, len(tokens) - 1, longest):
        yield tokens[start : start + longest + 1]
