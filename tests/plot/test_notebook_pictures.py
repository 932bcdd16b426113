"""Pictures in a notebook: each appears once, however the call that draws it is written."""

import pickle

import pytest
from matplotlib import pyplot

from daskmm import KMeans, plot

_FIT = """
from daskmm import KMeans, plot
from daskmm.plot.figures import drawn_with_fonts_of_readers
model = KMeans(2, n_init=1, random_state=0).fit([[0.0], [1.0], [5.0]])
"""
# Cells, and the number of pictures that each shows.
_CELLS = {
    "plot.annealing_trace(model)": 1,
    "plot.annealing_trace(model);": 1,
    "figure = plot.annealing_trace(model)": 1,
    "plot.annealing_trace(model)\nprint(1)": 1,
    "plot.annealing_trace(model).axes[0].set_title('mine');": 1,
    "figure = plot.annealing_trace(model)\nfigure": 1,
    "figure = plot.annealing_trace(model)\ndisplay(figure)": 1,
    "plot.annealing_trace(model)\nplot.annealing_trace(model)": 2,
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplot.annealing_trace(model);": 2,
    "figure": 1,
    "print(2)": 0,
    "plot.require_matplotlib()": 0,
    "with drawn_with_fonts_of_readers():\n    page = plot.annealing_trace(model)": 0,
}


@pytest.mark.long
def test_a_notebook_shows_each_picture_once():
    nbclient = pytest.importorskip("nbclient", reason="needs a kernel")
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in (_FIT, *_CELLS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = {
        cell.source: sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in notebook.cells[1:]
    }
    assert shown == _CELLS


def test_a_script_keeps_no_figure_in_pyplot():
    model = KMeans(2, n_init=1, random_state=0).fit([[0.0], [1.0], [5.0]])
    before = pyplot.get_fignums()
    figure = plot.annealing_trace(model)
    assert pyplot.get_fignums() == before
    assert pickle.loads(pickle.dumps(figure)).get_label() == figure.get_label()
