"""Carry out the notebooks anew, each in a process of its own, and keep what they show: `make notebooks`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def carried_out(path: Path, folder: Path = FOLDER, timeout_s: int = 600) -> nbformat.NotebookNode:
    """The notebook with its outputs, less what differs from time to time and place to place."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=timeout_s, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    """Those that are named, or all that show what is stored in results/."""
    papers = ["benchmark", "bluefog", "certificates", "churn", "flex", "gpt", "relaysum", "thesis", "time", "wagma"]
    names = sys.argv[1:] or papers
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        print(f"{path.name} ...", flush=True)
        nbformat.write(carried_out(path), path)


if __name__ == "__main__":
    main()
