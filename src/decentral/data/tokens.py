"""Lines and rows of text files, and conversion of texts to tokens: words, characters, and byte-pair encoding."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from decentral.data.dataset import PADDING
from decentral.errors import ConfigError, suggest
from decentral.host.machine import require
from decentral.store.files import at_home

SPECIAL = ("[PAD]", "[UNK]")
"""Tokens 0 and 1: padding, and symbols that do not occur in the training texts."""
UNKNOWN = 1
FILE = "tokens.json"
INSTALL = "pip install '.[text]'"

_WORD = re.compile(r"\w+|[^\w\s]")
_PAD, _UNK = (re.compile(rf"^[<\[]{name}[>\]]$", re.I) for name in ("pad", "unk"))


class TextTokens(Enum):
    """The tokens of a text to classify.

    words   lower-case words and punctuation, the most frequent ones of the training texts
    bpe     lower-case subwords, by byte-pair encoding (Sennrich et al., ACL 2016)
    """

    words = "words"
    bpe = "bpe"


class RunningTokens(Enum):
    """The tokens of running text.

    characters   all characters of the training text
    bpe          subwords with their leading white space, by byte-pair encoding (Sennrich et al., ACL 2016)
    gpt2         GPT-2's 50,257 tokens; downloaded from the Hugging Face hub at the first use
    """

    characters = "characters"
    bpe = "bpe"
    gpt2 = "gpt2"


_HUB = "openai-community/gpt2"


class Symbols:
    """A list of words, or of characters of the training texts of all workers: the number of a symbol is its index."""

    def __init__(self, symbols: Sequence[str], words: bool) -> None:
        self.symbols, self.words = list(symbols), words
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    @classmethod
    def trained(cls, texts: Iterable[str], vocabulary: int, words: bool) -> Symbols:
        """Return the most frequent symbols; equally frequent ones are in alphabetical order."""
        counts = Counter(symbol for text in texts for symbol in _symbols(text, words))
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        return cls([*SPECIAL, *ranked[: vocabulary - len(SPECIAL)]], words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        known = self._numbers
        return [[known.get(symbol, UNKNOWN) for symbol in _symbols(text, self.words)] for text in texts]

    def lengths(self) -> list[int]:
        """Return the number of characters of each token; an unknown token counts as one."""
        return [0, 1, *map(len, self.symbols[len(SPECIAL) :])]

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps({"words": self.words, "symbols": self.symbols}), encoding="utf-8")


class BytePairs:
    """A tokenizer of the library `tokenizers`, with the methods of `Symbols`."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def trained(cls, texts: Iterable[str], vocabulary: int, running: bool) -> BytePairs:
        """Train the tokenizer with lower case and split words; `running`: without normalization."""
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
    def load(cls, path: Path | None, running: bool = False) -> BytePairs:
        """Load a file of the library; None: download GPT-2's.

        Raises ConfigError for a file that is not a tokenizer, for a failed download, and for texts with labels if token
        0 is not padding.
        """
        check_library(f"data.tokenizer={path}" if path else "data.tokens=gpt2")
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(path)) if path else Tokenizer.from_pretrained(_HUB)
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ConfigError(
                f"data.tokenizer={path} cannot be read ({reason}): give a tokenizer.json of the library tokenizers."
                if path
                else f"data.tokens=gpt2 cannot be downloaded ({reason}): give the tokenizer.json of {_HUB} as "
                "data.tokenizer=FILE."
            ) from None
        used = tokenizer.id_to_token(PADDING)
        if not running and used is not None and not _PAD.fullmatch(used):
            raise ConfigError(
                f"data.tokenizer={path} has '{used}' as token 0, which is padding here: give one with [PAD] there."
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer)

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]

    def lengths(self) -> list[int]:
        """Return the number of characters of each token (bytes, if it is of bytes); padding counts as none, and an
        unknown token as one."""
        known = {number: token for token, number in self.tokenizer.get_vocab().items()}
        return [len(_UNK.sub("?", _PAD.sub("", known.get(number, "")))) for number in range(max(known) + 1)]

    def save(self, path: Path) -> None:
        """Write it to a file."""
        self.tokenizer.save(str(path))


def tokenizer_file(given: str | None) -> Path | None:
    """Return the file that is `data.tokenizer`; None if there is none. Raises ConfigError if it does not exist."""
    file = None if given is None else at_home(given)
    if file is not None and not file.is_file():
        raise ConfigError(f"data.tokenizer={given} is not a file: give a tokenizer.json, or leave it out.")
    return file


def check_library(setting: str) -> None:
    """Raise ConfigError, with the line that installs it, if the library `tokenizers` is missing."""
    require(
        "tokenizers", setting, f"{INSTALL}, or use tokens without a tokenizer: data.tokens=words for texts with labels"
    )


def _symbols(text: str, words: bool) -> Sequence[str]:
    return _WORD.findall(text.lower()) if words else text


MOST_CHARACTERS = 10_000
"""Maximum number of characters in a line: longer lines are not sentences."""


def find(folder: str | Path, name: str, key: str) -> Path:
    """Return the file `name` in the folder, or `name`.gz. Raises ConfigError if neither exists."""
    for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(f"{key}={folder}: file {name} (or {name}.gz) is missing in {Path(folder).absolute()}: add it.")


def read_lines(path: Path, key: str) -> list[str]:
    """Read the sentences of a UTF-8 text file, plain or .gz, one per line. Only a newline ends a line.

    Raises ConfigError, with file and line, for invalid UTF-8 and for lines that are not sentences.
    """
    lines = [line.strip() for line in utf8_lines(path, key)]
    for number, text in enumerate(lines, 1):
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"{key}: {path}, line {number} has {len(text):,} characters, more than {MOST_CHARACTERS:,}: split or "
                "remove the line."
            )
    return lines


@lru_cache(maxsize=64)  # a study reads it for each of its configurations
def count_lines(path: Path, key: str, _digest: str) -> int:
    """Return the number of lines in a file with this digest."""
    with _reading(path, key) as file:
        return sum(1 for _ in file)


@contextmanager
def _reading(path: Path, key: str) -> Iterator[Iterable[bytes]]:
    """Open the file, plain or .gz. Raises ConfigError if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{key}: {path} cannot be read ({reason}): replace it by a complete file.") from error


class Row(NamedTuple):
    """The values of the requested columns."""

    where: str
    """The file and the line in which the row ends, as text."""
    values: list[str]


def utf8_lines(path: Path, key: str = "data.path") -> Generator[str]:
    """Yield the lines of a file, with their ends. Raises ConfigError for bytes that are not UTF-8, with the line."""
    with _reading(path, key) as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{key}: {path}, line {number}: byte {error.start + 1} is not UTF-8: convert the file, for example "
                    "with iconv."
                ) from None


def read_rows(path: Path, columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    """Yield these columns of a file, row by row: of CSV by name (the first line is the header) or, for files without a
    header, by number from 0; of JSONL by name.

    Raises ConfigError, with file and line, for a missing column, a row that is too short or longer than the header, a
    value that is neither text nor a number, or invalid CSV or JSON.
    """
    with closing(utf8_lines(path)) as lines:  # closed at once, not when an error's traceback is released
        yield from (_json_rows if path.suffix == ".jsonl" else _csv_rows)(path, lines, columns)


def records(path: Path) -> list[dict[str, Any]]:
    """Return all columns of the rows that `read_rows` yields."""
    with closing(utf8_lines(path)) as lines:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in lines if line.strip()]
        return list(csv.DictReader(lines, strict=True))


def _csv_rows(path: Path, lines: Iterator[str], columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    reader, places, wanted = csv.reader(lines, strict=True), list[int](), 0
    try:
        header = next(reader, []) if isinstance(columns[0], str) else []
        for column in columns:
            if isinstance(column, str) and header.count(column) != 1:
                raise ConfigError(
                    f"data.path: {path}, line 1 must name a column '{column}' exactly once.{suggest(column, header)}"
                )
            places.append(header.index(column) if isinstance(column, str) else column)
        wanted = len(header) or max(places) + 1
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if row and (len(row) > len(header) > 0 or len(row) <= max(places)):
                raise ConfigError(
                    f"data.path: {where}: {len(row)} columns instead of {wanted}: quote texts that contain commas."
                )
            if row:
                yield Row(where, [row[place] for place in places])
    except csv.Error as error:
        raise ConfigError(
            f"data.path: {path}, line {reader.line_num}: not readable as CSV ({error}): quote texts, and keep each "
            f"below {csv.field_size_limit():,} characters."
        ) from None


def _json_rows(path: Path, lines: Iterator[str], columns: Sequence[str] | Sequence[int]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"data.path: {where}: not readable as JSON ({error}).") from None
        if not isinstance(found, dict):
            raise ConfigError(
                f"data.path: {where}: {line.strip()[:20]} is not a JSON object: give one object per line."
            )
        values = []
        for column in map(str, columns):
            value = found.get(column)
            if not isinstance(value, str | int | float) or value != value:
                raise ConfigError(
                    f"data.path: {where}: '{column}' is {json.dumps(value)[:40]}: give a text or a "
                    f"number.{suggest(column, found) if column not in found else ''}"
                )
            values.append(str(value))
        yield Row(where, values)
