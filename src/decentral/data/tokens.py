"""From texts to tokens: whole words and characters by ourselves, byte-pair encoding by the library `tokenizers`."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from decentral.data.description import PADDING
from decentral.errors import ConfigError
from decentral.host.machine import require

SPECIAL = ("[PAD]", "[UNK]")
"""Tokens 0 and 1: padding, and what did not occur in the training texts."""
UNKNOWN = 1
FILE = "tokens.json"
INSTALL = "pip install 'decentral[text]'"

_WORD = re.compile(r"\w+|[^\w\s]")


class TextTokens(Enum):
    """What a text to be classified is cut into.

    words   lower-case words and signs, the most frequent ones of the training texts
    bpe     lower-case parts of words, by byte-pair encoding (Sennrich et al., ACL 2016)
    """

    words = "words"
    bpe = "bpe"


class RunningTokens(Enum):
    """What running text is cut into.

    characters   every character that occurs in the training text
    bpe          parts of words, with the white space before them, by byte-pair encoding (Sennrich et al., ACL 2016)
    """

    characters = "characters"
    bpe = "bpe"


class Encoder(ABC):
    """Cuts texts into tokens. It is trained on the training texts of all workers, once, and stored in a file."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text."""

    @abstractmethod
    def lengths(self) -> list[int]:
        """How many characters each token stands for."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Into a file."""


class Symbols(Encoder):
    """A list of words, or of characters: the number of one is its place."""

    def __init__(self, symbols: Sequence[str], words: bool) -> None:
        self.symbols, self.words = list(symbols), words
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    @classmethod
    def trained(cls, texts: Iterable[str], vocabulary: int, words: bool) -> Symbols:
        """The most frequent ones; equally frequent ones in alphabetical order."""
        counts = Counter(symbol for text in texts for symbol in _symbols(text, words))
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        return cls([*SPECIAL, *ranked[: vocabulary - len(SPECIAL)]], words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Encoder`."""
        known = self._numbers
        return [[known.get(symbol, UNKNOWN) for symbol in _symbols(text, self.words)] for text in texts]

    def lengths(self) -> list[int]:
        """See `Encoder`; what is unknown is a character."""
        return [0, 1, *map(len, self.symbols[len(SPECIAL) :])]

    def save(self, path: Path) -> None:
        """See `Encoder`."""
        path.write_text(json.dumps({"words": self.words, "symbols": self.symbols}), encoding="utf-8")


class BytePairs(Encoder):
    """A tokenizer of the library `tokenizers`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def trained(cls, texts: Iterable[str], vocabulary: int, running: bool) -> BytePairs:
        """With these settings of the library: lower case and words apart; `running`: everything stays as it is."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
        if running:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s*\S+|\s+"), "isolated")
        else:
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> BytePairs:
        """From a file of the library. Raises ConfigError if it is none, or has padding elsewhere."""
        check_library(f"data.tokenizer={path}")
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ConfigError(
                f"data.tokenizer={path} cannot be read ({error}): give a tokenizer.json of the library tokenizers."
            ) from None
        used = tokenizer.id_to_token(PADDING)
        if used is not None and not re.fullmatch(r"[<\[]pad[>\]]", used, re.I):
            raise ConfigError(
                f"data.tokenizer={path} has '{used}' as token 0, which is padding here: give one with [PAD] there."
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Encoder`."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]

    def lengths(self) -> list[int]:
        """See `Encoder`; what is unknown is a character."""
        known = self.tokenizer.get_vocab()
        found = {number: len(token) for token, number in known.items()} | {PADDING: 0, UNKNOWN: 1}
        return [found.get(number, 0) for number in range(max(found) + 1)]

    def save(self, path: Path) -> None:
        """See `Encoder`."""
        self.tokenizer.save(str(path))


def check_library(setting: str) -> None:
    """Raise ConfigError, with the line that installs it, if the library `tokenizers` is missing."""
    require("tokenizers", setting, f"{INSTALL}, or use tokens that need none: data.tokens=words for texts with labels")


def _symbols(text: str, words: bool) -> Sequence[str]:
    return _WORD.findall(text.lower()) if words else text
