"""Runs a notebook of notebooks/ in a kernel of its own, and asks it what came out."""

from __future__ import annotations

from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def executed(name, question, *, seconds=1500.0):
    """Run notebook `name` to its end, and then one more cell.

    Parameters
    ----------
    question : str
        Code of the last cell.
    seconds : float
        That a cell may take.

    Returns
    -------
    answer : str
        What the last cell printed.
    notebook : NotebookNode
        With all outputs.

    Raises
    ------
    CellExecutionError
        If a cell ends with an error.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(question))
    place = {"metadata": {"path": NOTEBOOKS}}
    client = nbclient.NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", resources=place
    )
    client.execute()
    printed = [out.text for out in notebook.cells[-1].outputs if out.get("name") == "stdout"]
    return "".join(printed), notebook
