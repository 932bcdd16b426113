"""A picture of two clusterings side by side; public in `daskmm.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm.data.names import counted
from daskmm.plot.figures import BLUE, GREY, new_figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def matching(found: Any) -> Figure:
    """Draw the rows that clusters of two labelings share, with matched clusters on the diagonal.

    Parameters
    ----------
    found : Matching
        The matching that :func:`daskmm.metrics.match_clusters` returns.

    Returns
    -------
    matplotlib Figure
    """
    order = [
        np.concatenate([found.pairs[:, side], np.setdiff1d(np.arange(size), found.pairs[:, side])])
        for side, size in enumerate(found.table.shape)
    ]
    table = found.table[np.ix_(*order)]
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    figure = new_figure(figsize=(7.6, 4.6))
    left, right = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
    left.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    for axis, labels, places in (
        (left.xaxis, found.second, order[1]),
        (left.yaxis, found.first, order[0]),
    ):
        step = -(-len(places) // 30)
        axis.set_ticks(range(0, len(places), step), [str(labels[i]) for i in places[::step]])
    left.set_xlabel("cluster of the second labeling")
    left.set_ylabel("cluster of the first")
    jaccard = np.zeros(len(order[0]))
    jaccard[: len(found.jaccard)] = found.jaccard
    right.barh(range(len(jaccard)), jaccard, color=[BLUE if j > 0 else GREY for j in jaccard])
    right.set_xlim(0.0, 1.0)
    right.set_xlabel("Jaccard similarity")
    open_frame(right)
    left.set_title("share of the rows of each cluster", fontsize=11)
    same = int((found.jaccard > 0.5).sum())
    figure.set_label(
        f"{same:,} of {counted(len(order[0]), 'cluster')} have a Jaccard similarity of more than "
        f".5 with their match among {len(order[1]):,}; the mean is {jaccard.mean():.2f}."
    )
    return figure
