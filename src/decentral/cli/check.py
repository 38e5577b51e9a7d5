"""The console command `decentral-check`: does an algorithm do what every algorithm has to do?"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from decentral.cli.command import Options, guarded
from decentral.config.overrides import checked
from decentral.errors import ConfigError
from decentral.registry.find import functions
from decentral.terminal.console import FAILED, aligned, say

if TYPE_CHECKING:
    from decentral.conformance.check import Checks, Found

_HELP = """\
decentral-check algo=NAME [key=value ...] [--config-dir FOLDER]

Checks an algorithm, your own (docs/own_components.md) or a built-in one, in small runs, and reports which properties
of the contract hold: the same iterates with 1, 2 and n processes and after a resume, a preserved mean of the models,
bytes counted as sent, plain SGD where every worker hears all others, and so on. Other settings (algo.step_size=1,
topology=star) apply to all runs; topology= defaults to one that suits the algorithm. Takes about a minute.
Exit status: 0 all hold, 1 some do not, 2 refused.
"""
_WIDTH = 118


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
    reports = functions("checks")
    of_reports = [word for word in options.words if re.split(r"[.=]", word)[0] in reports]
    words = [word for word in options.words if word not in of_reports]
    checked(words, options.folders)  # before anything heavy is imported
    from decentral.conformance.check import Checks

    checks, texts = Checks(words, options.config_dir), []
    for name, report in reports.items():
        given = (word.removeprefix(name).partition("=") for word in of_reports if re.split(r"[.=]", word)[0] == name)
        texts.append(report(checks.base, {key.removeprefix("."): value for key, _, value in given}))
    status = check(chosen[0], checks)
    for text in itertools.chain(*texts):
        say(f"\n{text}")
    return status


def check(algo: str, checks: Checks) -> int:
    """Check and print the outcome; return the exit status."""
    from decentral.conformance.check import BREAKS_OFF, Verdict

    base, found = checks.base, []
    say(f"{algo} on topology={base.topology.name} with {base.num_workers} workers")
    for number, name in enumerate(checks.all, start=1):
        say(f"[{number} of {len(checks.all)}] {name} ...")
        found.append(checks.carry_out(name))
    say(f"\n{table(found)}")
    failed = [one for one in found if one.verdict is Verdict.failed]
    for words in dict.fromkeys(one.words for one in failed):
        names = [f"'{one.name}'" for one in failed if one.words == words]
        if words.startswith(BREAKS_OFF):  # one exception ends every run
            names = [", ".join(names)]
        for name in names:
            say("\n" + textwrap.fill(f"{algo} fails {name}: {words}", _WIDTH))
    counts = Counter(one.verdict for one in found)
    untested = f", {counts[Verdict.not_tested]} not tested" if counts[Verdict.not_tested] else ""
    passed, not_asked = counts[Verdict.passed], counts[Verdict.not_asked]
    say(f"\n{algo}: {passed} passed, {len(failed)} failed, {not_asked} not applicable{untested}")
    return FAILED if failed else 0


def table(found: Sequence[Found]) -> str:
    """Return the properties, their verdicts and remarks as a table."""
    rows = [["property", "", ""]]
    rows += [[one.name, one.verdict, "" if one.verdict == "FAILED" else one.words] for one in found]
    return aligned(rows, left=3)


if __name__ == "__main__":
    main()
