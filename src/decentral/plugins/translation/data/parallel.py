"""Sentences in two languages, and the batches of task=translation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.data.dataset import PADDING, DataSet, Loaded, TokenData, cached
from decentral.data.tokens import count_lines, find, read_lines
from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.settings import setting
from decentral.store.digests import file_digest, folder_digest
from decentral.store.files import at_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from tokenizers import Tokenizer
    from torch import Tensor


PAD, BEGIN, END = PADDING, 1, 2
"""Tokens for padding, and for the beginning and end of sentences."""
_RATIO = 1.2
"""Ratio of the longest to the shortest sentence of a bucket."""


@dataclass(frozen=True, kw_only=True)
class SentencePairs(TokenData):
    """Sentences with their translations, both in tokens of one vocabulary; 1 begins a sentence, 2 ends it.

    `longest` and `usual` do not count these two tokens.
    """

    kind: ClassVar[str] = "pairs of sentences"

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of a batch of the longest sentences, each with the end token: [size, longest + 1]."""
        return size, self.longest + 1


class Corpus:
    """Concatenated sentences, each as BEGIN, its tokens, END."""

    def __init__(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        """Store tokens [T] int32; sentence i ends before ends[i]: [N] int64."""
        self.tokens = tokens
        self.starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
        self.lengths = ends - self.starts - 1
        """Number of tokens of each sentence, with the end token: [N]."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Corpus:
        """Return the corpus of these sentences, which have no BEGIN and END yet."""
        ends = np.cumsum([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        parts = [np.array([BEGIN, *sentence, END], dtype=np.int32) for sentence in sentences]
        return cls(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32), ends)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.lengths)

    @property
    def ends(self) -> np.ndarray:
        """Return the index after the last token of each sentence: [N]."""
        return self.starts + self.lengths + 1

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return these sentences [B], padded with PAD: int64 [B, 1 + the longest length], from BEGIN to END."""
        lengths = self.lengths[numbers, None]
        places = np.arange(int(lengths.max()) + 1)
        inside = places <= lengths
        return np.where(inside, self.tokens[np.where(inside, self.starts[numbers, None] + places, 0)], PAD).astype(
            np.int64
        )


class Sentences(NamedTuple):
    """The input of a network: the sentences of a batch, and the prefixes of their translations."""

    source: Tensor  # [B, S] int64, padded with PAD, each sentence with END
    target: Tensor  # [B, T] int64: BEGIN, then the first T - 1 tokens


@dataclass
class Text:
    """The text behind the tokens.

    words        tokens, without BEGIN and END, as text: words with blanks between them
    references   the original translations of the test sentences
    plain        whether only blanks separate the words of the text, so that BLEU needs no tokenization
    tokens       function from a sentence to its tokens, without BEGIN and END; it raises ConfigError for unknown words.
                 None: only test sentences can be translated
    """

    words: Callable[[Sequence[int]], str]
    references: Sequence[str]
    plain: bool
    tokens: Callable[[str], list[int]] | None = None


class Pairs(Loaded):
    """Training and test sentences with their translations, in memory; batches go to the device one by one.

    `order(step)` has for each worker the numbers [B] of the pairs that it draws: workers have batches of different
    shapes. The labels for `partition` are the buckets of lengths, see `bounds`.
    """

    def __init__(
        self, train: tuple[Corpus, Corpus], test: tuple[Corpus, Corpus], text: Text, device: torch.device | str
    ) -> None:
        """Store sources and targets: pair i is sentence i of both."""
        self.train, self.test, self.text, self.device = train, test, text, device
        self.num_test = len(test[0])
        self.bounds, self.train_labels = buckets(*(side.lengths for side in train))
        """Number of tokens of the longest sentence of each bucket, with END: [buckets]."""
        self.num_classes = len(self.bounds)

    def drawn(self, rows: Any, workers: Sequence[int], steps: Sequence[int]) -> tuple[list[Sentences], list[Tensor]]:
        """Return lists of `Sentences`, one for each worker, and of the target tokens [B, T]."""
        batches = [self.batch(self.train, numbers) for numbers in rows]
        return [sentences for sentences, _ in batches], [target for _, target in batches]

    def tested(self, numbers: Tensor) -> tuple[Sentences, Tensor]:
        """Return `Sentences` and the target tokens [b, T]."""
        return self.batch(self.test, numbers.numpy())

    def batch(self, pairs: tuple[Corpus, Corpus], numbers: np.ndarray) -> tuple[Sentences, Tensor]:
        """Return these pairs [B] as the input of a network, and the target tokens [B, T]: translations with END."""
        import torch

        source, target = (torch.from_numpy(side.rows(numbers)).to(self.device) for side in pairs)
        return Sentences(source[:, 1:], target[:, :-1].clone()), target[:, 1:]  # a model may write into what it gets


def buckets(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return length buckets for pairs of lengths [N]: maximum lengths [buckets], and each pair's bucket [N] int64.

    The longer side counts. Each bucket's maximum is a fifth longer than the previous one's.
    """
    longer, bounds = np.maximum(source, target), list[int]()
    while not bounds or bounds[-1] < longer.max():
        last = bounds[-1] if bounds else 0
        bounds.append(min(int(longer.max()), max(last + 1, int(last * _RATIO))))
    found = np.array(bounds, dtype=np.int64)
    return found, np.searchsorted(found, longer).astype(np.int64)


SPECIAL = {PAD: "<pad>", BEGIN: "<s>", END: "</s>"}
"""Special tokens, which are not parts of words: number -> name in the tokenizer's file."""
LEAST = 256 + len(SPECIAL)
"""Number of tokens of a vocabulary of single bytes."""
_INSTALL = "pip install '.[translation]', or use data=synthetic_translation, which needs no package"


def trained(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-pair tokenizer: bytes plus the most frequent pairs of known tokens (Sennrich et al. 2016).

    Byte-level (GPT-2's), so that there are no unknown tokens and decoding is lossless. With too few pairs the
    vocabulary is smaller than requested.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SPECIAL[number] for number in sorted(SPECIAL)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with in_one_thread():
        tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def opened(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a file. Raises ConfigError if it is not a tokenizer file, or has other special tokens."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(at_home(path)))
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(
            f"data.tokenizer={path} is not a tokenizer ({error}): give a file saved by tokenizer.save(...) of the "
            "tokenizers library."
        ) from None
    if any(tokenizer.token_to_id(token) != number for number, token in SPECIAL.items()):
        raise ConfigError(
            f"data.tokenizer={path} must have {', '.join(f'{t} as token {n}' for n, t in SPECIAL.items())}: train it "
            f"with special_tokens={[SPECIAL[each] for each in sorted(SPECIAL)]}."
        )
    return tokenizer


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Limit the library to one core, and silence its warning about forks."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM")
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before


_SPLITS = ("train", "test")
_SIDES = ("source", "target")
_AT_ONCE = 10_000  # sentences encoded per batch


@dataclass
class Parallel(DataSet):
    """Your own sentences with their translations: for example `path`/train.en and `path`/train.de, test.en and test.de.

    Line i of one file is the translation of line i of the other; UTF-8, plain or .gz. WMT17 English-German:
    data.path=FOLDER data.train=train data.test=newstest2014 data.vocab_size=33708. The tokens are parts of words, of
    one vocabulary for both languages (byte-pair encoding, trained on the training sentences once and kept in the
    cache). Training sentences of more than `longest` tokens are left out; test sentences are cut there.

    path         folder of the data
    source       file extension of the source language
    target       file extension of the target language
    train, test  file name before the extension: train.en
    vocab_size   number of tokens, including the three for padding, begin and end
    tokenizer    a file of the tokenizers library, instead of training a tokenizer
    longest      maximum number of tokens in a sentence
    skip_empty   skip pairs with an empty line, instead of refusing them
    """

    name: str = "parallel"
    path: str | None = field(default=None, metadata={"content": True})
    source: str = "en"
    target: str = "de"
    train: str = "train"
    test: str = "test"
    vocab_size: int = setting(8000, at_least=LEAST, hint="bytes plus three special tokens")
    tokenizer: str | None = field(default=None, metadata={"content": True})
    longest: int = setting(100, at_least=1)
    skip_empty: bool = False

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ConfigError(
                f"data.source={self.source} and data.target={self.target} are the same: use two languages."
            )

    def files_digest(self) -> str:
        """Return the digest of the files that are read, and of no other files in the folder."""
        files = [path for pair in self._files().values() for path in pair]
        return folder_digest(files[0].parent, [file.name for file in files])

    def inspect(self) -> SentencePairs:
        """Count the lines, and return the description."""
        require("tokenizers", f"data={self.name}", _INSTALL)
        counts = [
            self._pairs(*paths, *(count_lines(path, self._where, file_digest(path)) for path in paths))
            for paths in self._files().values()
        ]
        vocabulary = self.vocab_size if self.tokenizer is None else opened(self.tokenizer).get_vocab_size()
        return SentencePairs(
            num_train=counts[0], num_test=counts[1], vocabulary=vocabulary, longest=self.longest, usual=self.longest / 4
        )

    def prepare(self) -> Path:
        """Train the tokenizer and encode the sentences, unless no file has changed since the last time."""
        require("tokenizers", f"data={self.name}", _INSTALL)
        files = self._files()
        size = self.vocab_size if self.tokenizer is None else at_home(self.tokenizer).read_bytes()
        words = repr(("parallel-2", size, self.longest, self.skip_empty, self.files_digest()))
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        return cached(f"parallel-{digest}", lambda folder: self._build(folder, files))

    def notes(self) -> tuple[str, ...]:
        """Return notes on the number of sentences longer than `longest`."""
        return tuple(_facts(self.prepare())["notes"])

    def load(self, device: torch.device | str, seed: int) -> Pairs:
        """Load all sentences."""
        folder = self.prepare()
        tokenizer = opened(folder / "tokenizer.json")

        def words(tokens: Sequence[int]) -> str:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

        def tokens(text: str) -> list[int]:
            return _encoded(tokenizer, [text])[0]

        def corpus(split: str, side: str) -> Corpus:
            return Corpus(*(np.load(folder / f"{split}_{side}_{what}.npy") for what in ("tokens", "ends")))

        train, test = ((corpus(split, "source"), corpus(split, "target")) for split in _SPLITS)
        return Pairs(train, test, Text(words, _facts(folder)["references"], plain=False, tokens=tokens), device)

    @property
    def _where(self) -> str:
        return f"data.path={self.path}"

    def _files(self) -> dict[str, tuple[Path, Path]]:
        """Return the source and target file of each split."""
        if self.path is None:
            raise ConfigError(
                f"data={self.name} needs data.path=FOLDER that contains {self.train}.{self.source}, "
                f"{self.train}.{self.target}, {self.test}.{self.source} and {self.test}.{self.target} (or .gz)."
            )
        folder = at_home(self.path)
        if not folder.is_dir():
            raise ConfigError(f"data.path={self.path} is not a folder (looked for {folder.absolute()}).")
        ends, names = (self.source, self.target), {"train": self.train, "test": self.test}
        found = {split: [find(folder, f"{names[split]}.{end}", "data.path") for end in ends] for split in _SPLITS}
        return {split: (paths[0], paths[1]) for split, paths in found.items()}

    def _build(self, folder: Path, files: dict[str, tuple[Path, Path]]) -> None:
        texts = {split: self._read(*files[split]) for split in _SPLITS}
        if self.tokenizer is None:
            tokenizer = trained((line for side in texts["train"] for line in side), self.vocab_size)
        else:
            tokenizer = opened(self.tokenizer)
        tokenizer.save(str(folder / "tokenizer.json"))
        notes = []
        for split in _SPLITS:
            sides = [_encoded(tokenizer, side) for side in texts[split]]
            short = [all(len(side[i]) <= self.longest for side in sides) for i in range(len(sides[0]))]
            if split == "train":
                sides = [list(compress(side, short)) for side in sides]
                told = f"{short.count(False):,} training sentences of more than {self.longest} tokens are skipped"
            else:
                sides = [[one[: self.longest] for one in side] for side in sides]
                told = f"{short.count(False):,} test sentences are truncated to {self.longest} tokens"
            notes += [told] if not all(short) else []
            if not sides[0]:
                raise ConfigError(
                    f"{self._where}: no sentence of {files[split][0].name} has {self.longest} tokens or fewer: use a "
                    "larger data.longest."
                )
            for name, side in zip(_SIDES, sides, strict=True):
                corpus = Corpus.of(side)
                np.save(folder / f"{split}_{name}_tokens.npy", corpus.tokens)
                np.save(folder / f"{split}_{name}_ends.npy", corpus.ends)
        facts = {"references": texts["test"][1], "notes": notes}
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")

    def _pairs(self, source: Path, target: Path, sources: int, targets: int) -> int:
        """Return the number of pairs of two files with these line counts. Raises ConfigError for untranslated lines."""
        if sources != targets:
            (longer, more), (shorter, fewer) = sorted(((source, sources), (target, targets)), key=lambda one: -one[1])
            raise ConfigError(
                f"{self._where}: {longer} has {more:,} lines and {shorter} has {fewer:,}, so line {fewer + 1:,} of "
                "the first has no translation: align the files line by line."
            )
        if not sources:
            raise ConfigError(f"{self._where}: {source} is empty: give one sentence per line.")
        return sources

    def _read(self, source: Path, target: Path) -> tuple[list[str], list[str]]:
        """Return the lines of two corresponding files. Raises ConfigError if they do not correspond."""
        sides = read_lines(source, self._where), read_lines(target, self._where)
        self._pairs(source, target, *map(len, sides))
        whole = [bool(line and translation) for line, translation in zip(*sides, strict=True)]
        if not all(whole) and not self.skip_empty:
            i = whole.index(False)
            raise ConfigError(
                f"{self._where}: {target if sides[0][i] else source}, line {i + 1} is empty: remove this line from "
                "both files, or skip such pairs with data.skip_empty=true."
            )
        source_lines, target_lines = (list(compress(side, whole)) for side in sides)
        return source_lines, target_lines


def _facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return found


def _encoded(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    with in_one_thread():
        return [
            list(found.ids)
            for first in range(0, len(lines), _AT_ONCE)
            for found in tokenizer.encode_batch(lines[first : first + _AT_ONCE], add_special_tokens=False)
        ]


@dataclass
class Multi30k(Parallel):
    """Multi30k: 29,000 short English descriptions of pictures with their German translations, and 1,000 for testing.

    Elliott, Frank, Sima'an and Specia, Multi30K: Multilingual English-German Image Descriptions, 2016
    (arXiv:1605.00459). Nothing is downloaded: data.path=FOLDER contains train.en, train.de, test_2016_flickr.en and
    test_2016_flickr.de (plain or .gz), as in the data set's repository (task 1, raw). Everything else is as in
    data=parallel.
    """

    name: str = "multi30k"
    test: str = "test_2016_flickr"
