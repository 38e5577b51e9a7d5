"""Run the notebooks again, each in a process of its own, and keep their outputs: `make notebooks`.

`notebooks/tutorial.ipynb` is docs/tutorial.md as cells.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def tutorial() -> nbformat.NotebookNode:
    """Return docs/tutorial.md as a notebook: commands begin with `!`, and modules are written to files."""
    text = (FOLDER.parent / "docs" / "tutorial.md").read_text()
    text = re.sub(r"\]\((\w+\.md)", r"](../docs/\1", text)
    cells = []
    for words, python, code in re.findall(r"(.*?)(?:^```(python)?\n(.*?)^```\n|\Z)", text, re.M | re.S):
        if words.strip():
            cells.append(nbformat.v4.new_markdown_cell(words.strip()))
        if python:
            file, source = code.removeprefix("# ").split("\n", 1)
            cells.append(nbformat.v4.new_code_cell(f"%%writefile {file}\n{source}".strip()))
        elif code:
            cells.append(nbformat.v4.new_code_cell(f"!{code}".strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return nbformat.v4.new_notebook(cells=cells)


def without_progress(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return what a command printed as one output: the last 25 lines, without those that show progress."""
    lines = "".join(output.text for output in outputs).replace("\r\n", "\n").replace("\r", "\n").splitlines()
    lines = [re.sub(r"\x1b\[[?0-9;]*[hlm]", "", line) for line in lines]
    shown = [line for line in lines if not re.match(r"\x1b|\[|Composing|Making|Testing|.*…", line)]
    return [nbformat.v4.new_output("stream", text="\n".join(shown[-25:]).strip() + "\n")] if lines else []


def carried_out(notebook: nbformat.NotebookNode, folder: Path, timeout_s: int = 600) -> nbformat.NotebookNode:
    """Run the notebook in `folder`, and return it with its outputs, less what differs between times and places."""
    client = NotebookClient(
        notebook, timeout=timeout_s, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    """Run the named notebooks, or all that show what is stored in results/."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    papers = ["benchmark", "bluefog", "certificates", "churn", "flex", "gpt", "relaysum", "thesis", "time", "wagma"]
    for name in sys.argv[1:] or papers:
        path = FOLDER / f"{name}.ipynb"
        print(f"{path.name} ...", flush=True)
        if name == "tutorial":
            with tempfile.TemporaryDirectory() as folder:
                notebook = carried_out(tutorial(), Path(folder))
            for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
                cell.outputs = without_progress(cell.outputs)
        else:
            notebook = carried_out(nbformat.read(path, as_version=4), FOLDER)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
