"""Figures, tables and verdicts of studies, inline in notebooks."""

from __future__ import annotations

import os
from pathlib import Path

from IPython.display import Image, Markdown

from decentral.errors import ConfigError, suggest
from decentral.report.figures.figure import StudyFigure
from decentral.report.pages import MOST_TELLING_FIRST
from decentral.report.results import Results, read
from decentral.report.style import plain, png, settings
from decentral.report.tables import as_markdown, harmless, markdown_table
from decentral.report.verdicts import count, judge, told


class Studies:
    """Results of the studies of one paper, each at the most telling scale that was run.

    `results_dir`: None is the environment variable DECENTRAL_RESULTS, or else the folder `results` here or above.
    """

    def __init__(self, paper: str, results_dir: str | Path | None = None) -> None:
        self.directory = (Path(results_dir) if results_dir else results_directory()) / paper

    def results(self, study: str) -> Results | None:
        """The study's results; None if there are none."""
        paths = (self.directory / study / scale for scale in MOST_TELLING_FIRST)
        return next((read(path) for path in paths if (path / "study.json").is_file()), None)

    def figure(self, study: str, name: str = "") -> Image | Markdown:
        """A figure of a study, its first one unless named; what to run if there is nothing to draw."""
        results = self.results(study)
        if results is None:
            return self._nothing(study)
        figures = {one.file: one for one in results.spec.figures}
        if not figures:
            return _text(f"**{study}** has no figure at scale={results.scale}.")
        chosen = name or next(iter(figures))
        if chosen not in figures:
            raise ConfigError(f"{study} has no figure '{name}'.{suggest(name, figures)}")
        return self.draw(study, figures[chosen])

    def draw(self, study: str, wanted: StudyFigure) -> Image | Markdown:
        """Any figure of a study's numbers, for example Scaling(x='num_workers', lines=['method'])."""
        results = self.results(study)
        if results is None:
            return self._nothing(study)
        lines = wanted.data(results)
        if not lines:
            return _text(f"**{study}** has no data for `{wanted.file}` at scale={results.scale}.")
        with settings(f"{study}/{wanted.file}"):
            return Image(png(plain(wanted.draw(results, lines)), dpi=110))

    def table(self, study: str) -> Markdown:
        """A study's table, with the published numbers in brackets where they can be compared."""
        results = self.results(study)
        return self._nothing(study) if results is None else _text(as_markdown(results))

    def verdicts(self, study: str) -> Markdown:
        """The claims and what came of them, and how many of the published numbers are met."""
        results = self.results(study)
        if results is None:
            return self._nothing(study)
        found = judge(results)
        lines = [[one.what, one.verdict, one.why] for one in found if one.kind == "claim"]
        blocks = [markdown_table([["claim", "verdict", "why"], *lines], left=3)] if lines else []
        counted = count(found, "number")
        blocks += [f"Published numbers: {told(counted)}."] if counted else []
        return _text("\n\n".join(blocks))

    def _nothing(self, study: str) -> Markdown:
        return _text(f"**{study}** has no results in {self.directory.parent}: run `decentral-study {study}` first.")


def _text(markdown: str) -> Markdown:
    return Markdown(harmless(markdown))


def results_directory() -> Path:
    """DECENTRAL_RESULTS, or the nearest folder `results` seen from here."""
    here = Path.cwd()
    above = next((path / "results" for path in (here, *here.parents) if (path / "results").is_dir()), here / "results")
    return Path(os.environ.get("DECENTRAL_RESULTS") or os.path.relpath(above))
