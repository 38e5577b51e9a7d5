"""The console command `decentral-check`: does an algorithm do what every algorithm has to do?"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decentral.cli.command import Options, guarded
from decentral.config.overrides import checked
from decentral.config.parsing import folders_of
from decentral.errors import ConfigError
from decentral.registry.find import functions
from decentral.registry.typed import typed
from decentral.terminal.console import FAILED, aligned, say

if TYPE_CHECKING:
    from pandas import DataFrame

    from decentral.conformance.check import Checks, Found

_HELP = """\
decentral-check algo=NAME[,NAME ...]|module:Class [key=value ...] [--config-dir FOLDER]

Checks an algorithm, your own (docs/own_algorithm.md) or a built-in one, in small runs, and reports which properties
of the contract hold: the same iterates with 1, 2 and n processes and after a resume, a preserved mean of the models,
bytes counted as sent, plain SGD where every worker hears all others, and so on. Other settings (algo.step_size=1,
topology=star) apply to all runs; topology= defaults to one that suits the algorithm. Takes about a minute each.
Exit status: 0 all hold, 1 some do not, 2 refused.
"""
_WIDTH = 118
_Algorithm = tuple[dict[str, Any], list[str]]
"""Objects by group, and overrides."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-check`. Exit status: 0 all properties hold, 1 some do not, 2 refused."""
    guarded("decentral-check", _carry_out, arguments)


def _carry_out(arguments: list[str]) -> int:
    options = Options("decentral-check").begin(arguments, _HELP)
    if options is None:
        return 0
    chosen = [word for word in options.words if word.startswith("algo=")]
    if len(chosen) != 1:
        raise ConfigError("decentral-check needs one algorithm, as in decentral-check algo=dpsgd.")
    words = [word for word in options.words if word != chosen[0]]
    algorithms: list[_Algorithm] = [({}, [f"algo={name}"]) for name in chosen[0].partition("=")[2].split(",")]
    found = _checked(algorithms, words, options.config_dir)
    return FAILED if any(one.verdict == "FAILED" for one in found) else 0


@typed()
def check(algo: object, *overrides: str, config_dir: str | None = None, **settings: Any) -> DataFrame:
    """Check an algorithm as `decentral-check` does, print its messages, and return its table: a row for each property,
    with the columns property, verdict and remark.

        decentral.check(MyAlgorithm(beta=0.2), topology=graph, num_workers=8)

    Args:
        algo: Name of an algorithm, or a class or object of your own. Other processes import its class, so that a class
            of a notebook or of the script itself is only checked in one process.
        overrides, settings, config_dir: As for `decentral.train`.

    Raises:
        ConfigError: for a setup that `decentral-check` refuses.
    """
    from pandas import DataFrame

    from decentral.script.training import taken_out

    objects, words = taken_out({"algo": algo, **settings})
    found = _checked([(objects, [*words, *overrides])], [], config_dir)
    return DataFrame(found, columns=["property", "verdict", "remark"]).set_index("property")


def _checked(algorithms: Sequence[_Algorithm], words: list[str], config_dir: str | None) -> list[Found]:
    """Check each algorithm with these overrides, print the outcomes and return them."""
    reports = functions("checks")
    algorithms = [(objects, [*own, *words]) for objects, own in algorithms]
    of_reports = [word for word in algorithms[0][1] if re.split(r"[.=]", word)[0] in reports]
    algorithms = [(objects, [word for word in own if word not in of_reports]) for objects, own in algorithms]
    for objects, own in algorithms:
        checked([word for word in own if word.partition(".")[0] not in objects], folders_of(config_dir))  # at once
    from decentral.conformance.check import Checks
    from decentral.script.training import made_of

    made = [made_of(objects, own, config_dir) for objects, own in algorithms]
    cases, texts = [Checks(own, config_dir, parts) for parts, own in made], []
    for name, report in reports.items():
        given = (word.removeprefix(name).partition("=") for word in of_reports if re.split(r"[.=]", word)[0] == name)
        texts.append(report([one.base for one in cases], {key.removeprefix("."): value for key, _, value in given}))
    found = [carry_out(f"algo={one.base.algo.name}", one) for one in cases]
    for text in itertools.chain(*texts):
        say(f"\n{text}")
    return list(itertools.chain(*found))


def carry_out(algo: str, checks: Checks) -> list[Found]:
    """Check, print the outcome and return it."""
    from decentral.conformance.check import BREAKS_OFF, Found, Verdict

    base, found = checks.base, list[Found]()
    say(f"{algo} on topology={base.topology.name} with {base.num_workers} workers")
    for number, name in enumerate(checks.all, start=1):
        say(f"[{number} of {len(checks.all)}] {name} ...")
        one = checks.carry_out(name)
        again = one.words.startswith(BREAKS_OFF) and any(one.words == other.words for other in found)
        found.append(Found(name, Verdict.not_tested, "the same exception") if again else one)
    say(f"\n{table(found)}")
    failed = [one for one in found if one.verdict is Verdict.failed]
    for one in failed:
        say("\n" + textwrap.fill(f"{algo} fails '{one.name}': {one.words}", _WIDTH))
    counts = Counter(one.verdict for one in found)
    untested = f", {counts[Verdict.not_tested]} not tested" if counts[Verdict.not_tested] else ""
    passed, not_asked = counts[Verdict.passed], counts[Verdict.not_asked]
    say(f"\n{algo}: {passed} passed, {len(failed)} failed, {not_asked} not applicable{untested}")
    return found


def table(found: Sequence[Found]) -> str:
    """Return the properties, their verdicts and remarks as a table."""
    rows = [["property", "", ""]]
    rows += [[one.name, one.verdict, "" if one.verdict == "FAILED" else one.words] for one in found]
    return aligned(rows, left=3)


if __name__ == "__main__":
    main()
