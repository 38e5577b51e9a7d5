"""Running text from files of your own, or from Python's documentation."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from decentral.data.running_text import RunningText, Source
from decentral.data.text_rows import utf8_lines
from decentral.data.tokens import RunningTokens
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.files import at_home


@dataclass
class TextFile(RunningText):
    """Running text: a file, a folder of files, or else the documentation of this Python's language.

    Every file of a folder is a source (hidden ones and folders in it are left out); a single file is cut into
    `sections` of equal length. Without `path` the sources are the topics of Python's `help`, about 460,000 characters
    that every installation has in its module pydoc_data.topics (Python Software Foundation License): another Python has
    a few other words in it, and gives another run.

    path         a file or a folder, in UTF-8
    sections     into how many sources a single file is cut
    tokens       characters, or bpe, trained on the training parts
    vocabulary   tokens at most, with padding and unknown
    longest      tokens in a window
    test_share   how much of the end of each source is for testing
    """

    name: str = "textfile"
    tokens: RunningTokens = RunningTokens.characters
    sections: int = setting(16, at_least=1)

    def sources(self) -> list[Source]:
        """Files by name, sections in their order, or topics by name."""
        if self.path is None:
            return [Source(name, text) for name, text in sorted(_documentation().items())]
        files = self.files()
        texts = ["".join(utf8_lines(file)) for file in files]
        for file, text in zip(files, texts, strict=True):
            if not text.strip():
                raise ConfigError(f"data.path: {file} is empty: remove it, or write something in it.")
        if len(files) > 1 or at_home(str(self.path)).is_dir():
            return [Source(file.name, text) for file, text in zip(files, texts, strict=True)]
        (text,) = texts
        bounds = [round(len(text) * part / self.sections) for part in range(self.sections + 1)]
        if len(text) < 2 * self.sections:
            raise ConfigError(
                f"data.path={self.path} has only {len(text)} characters for data.sections={self.sections}: use a "
                "longer text, or fewer sections."
            )
        return [Source(f"section {part}", text[bounds[part] : bounds[part + 1]]) for part in range(self.sections)]

    def files_digest(self) -> str:
        """Of the documentation, which is not the same in every Python; of the files in a folder."""
        return _documentation_digest() if self.path is None else super().files_digest()

    def notes(self) -> tuple[str, ...]:
        """Which text it is."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return () if self.path is not None else (f"text: the documentation of Python {version}",)

    def files(self) -> list[Path]:
        """None of the documentation; a file; those of a folder that are not hidden, by name."""
        if self.path is None:
            return []
        path = at_home(self.path)
        if path.is_file():
            return [path]
        found = sorted(file for file in path.glob("*") if file.is_file() and not file.name.startswith("."))
        if not found:
            what = "has no files" if path.is_dir() else "is no file and no folder"
            raise ConfigError(f"data.path={self.path} {what}: give a file, or a folder of files, in UTF-8.")
        return found


@cache
def _documentation() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError(
            "data=textfile without data.path takes the documentation in Python's module pydoc_data, which is missing "
            "here: give a file or a folder as data.path."
        ) from None
    return dict(topics)


@cache
def _documentation_digest() -> str:
    return hashlib.sha256(repr(sorted(_documentation().items())).encode()).hexdigest()[:16]
