"""Tab completion in bash and zsh: `-sc install=bash` prints what the shell evaluates once, which then asks `-sc
query=bash` at every tab. It answers from names of files and fields of dataclasses, in a fifth of a second."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from decentral.cli.help import choice, default, usual
from decentral.config.overrides import CHOICES, options
from decentral.config.parsing import folders_of
from decentral.config.schema import GROUPS, NODES, Config
from decentral.errors import ConfigError
from decentral.study import SCALES
from decentral.terminal.console import say

_RUN, _STUDY, _BENCHMARK = "decentral-run", "decentral-study", "decentral-benchmark"
_OPTIONS = {
    _RUN: ("--help", "--version", "--multirun", "--config-dir", "--cfg", "--resolve"),
    _STUDY: ("--help", "--plan", "--report", "--config-dir"),
    _BENCHMARK: ("--help", "--list", "--plan", "--report", "--config-dir"),
}

_BASH = """\
_decentral()
{
    local IFS=$'\\n' word="${COMP_LINE:0:COMP_POINT}"
    word="${word##*[[:space:]]}"
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" "$1" -sc query=bash 2> /dev/null))
    if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then  # bash replaces what is behind the last '='
        COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *[=.] ]]; then
        COMPREPLY[0]+=" "
    fi
}
complete -o nospace -o default -F _decentral decentral-run decentral-study decentral-benchmark
"""
_SHELLS = {"bash": _BASH, "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{_BASH}"}


def complete(words: Sequence[str], program: str) -> None:
    """Do what the word behind `-sc` asks for. Raises ConfigError if it is none that exists."""
    asked = words[0] if len(words) == 1 else ""
    known = [f"install={shell}" for shell in _SHELLS]
    if asked in known:
        say(_SHELLS[asked.removeprefix("install=")].rstrip())
    elif asked == "query=bash":  # in zsh, too, which has bash's variables then
        line = os.environ.get("COMP_LINE", "")
        say("\n".join(candidates(line[: int(os.environ.get("COMP_POINT") or len(line))], program)))
    else:
        raise ConfigError(f"-sc {' '.join(words)} does not exist: use -sc {' or -sc '.join(known)}.")


def candidates(line: str, program: str) -> list[str]:
    """List everything that the last word of a command line can become."""
    *before, word = [*line.split(), ""] if not line or line[-1].isspace() else line.split()
    if "--config-dir" in before[-1:] or "-cd" in before[-1:]:
        return []  # a folder, which the shell completes itself
    folders = _folders(before)
    if word.startswith("-"):
        found = list(_OPTIONS.get(program, ("--help", "--config-dir")))
    elif "=" in word:
        found = _values(word, before, folders, program)
    else:
        found = _keys(word, before, folders)
        if program == _STUDY:
            found += ["scale=", *options("study", folders)]
        elif program == _BENCHMARK:
            found += ["scale=", "methods=", "scenarios="]
    return sorted({one for one in found if one.startswith(word)})


def _folders(words: Sequence[str]) -> list[Path]:
    """Ours, and the one that `--config-dir` names, if there is one."""
    given = [word for before, word in pairwise(words) if before in ("-cd", "--config-dir")]
    given += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    return folders_of(given[-1] if given else None)


def _keys(word: str, before: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The settings, and those of a group or node once its name and a point are there."""
    head, point, _ = word.partition(".")
    if point:
        return [f"{head}.{name}=" for name in _settings(head, before, folders)]
    plain = [f.name for f in dataclasses.fields(Config) if f.name not in NODES]
    with_settings = [key for key in (*NODES, *GROUPS) if _settings(key, before, folders)]
    return [f"{key}=" for key in (*plain, *CHOICES)] + [f"{key}." for key in with_settings]


def _settings(head: str, before: Sequence[str], folders: Sequence[Path]) -> dict[str, dataclasses.Field[Any]]:
    """The settings of a node; or of what is chosen in a group, on this line or by default. One that is several, such as
    cluster.links, has a key for each of them."""
    if head in NODES:
        cls: type | None = NODES[head]
    else:
        cls = _chosen(head, before, folders) if head in GROUPS else None
    fields = dataclasses.fields(cls) if cls is not None else ()
    found: dict[str, dataclasses.Field[Any]] = {}
    for f in fields:
        if dataclasses.is_dataclass(f.default_factory):
            found |= {f"{f.name}.{part.name}": part for part in dataclasses.fields(f.default_factory)}
        elif f.name != "name" or head in NODES:
            found[f.name] = f
    return found


def _chosen(group: str, before: Sequence[str], folders: Sequence[Path]) -> type | None:
    """The dataclass of the choice; None if there is no such choice, or its file builds on another one."""
    said = [word.partition("=")[2] for word in before if word.startswith(f"{group}=")]
    name = said[-1] if said else usual(group, folders)
    return choice(group, name, folders).cls if name in options(group, folders) else None


def _values(word: str, before: Sequence[str], folders: Sequence[Path], program: str) -> list[str]:
    """The values of a choice, of a switch, and of a setting that has a few; behind a comma, too, where several can be
    given."""
    key, _, text = word.partition("=")
    several = program == _RUN and ("-m" in before or "--multirun" in before) and "," in text
    start = f"{key}={text.rpartition(',')[0]}," if several else f"{key}="
    if key == "scale" and program in (_STUDY, _BENCHMARK):
        return [start + scale for scale in SCALES if program == _STUDY or scale != "paper"]
    if key in CHOICES:
        return [start + name for name in options(key, folders)]
    head, point, name = key.partition(".")
    known = _settings(head, before, folders) if point else {f.name: f for f in dataclasses.fields(Config)}
    wanted = name if point else head
    return [start + value for value in (_few(known[wanted]) if wanted in known else [])]


def _few(f: dataclasses.Field[Any]) -> list[str]:
    """The values of a switch or of an enumeration."""
    value = default(f)
    if isinstance(value, bool):
        return ["true", "false"]
    return [member.name for member in type(value)] if isinstance(value, Enum) else []
