"""A picture of drift; public in `daskmm.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm.data.names import counted
from daskmm.plot.figures import BLUE, GREY, MARKS, RED, new_figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Smaller p-values get the same colour.
_LEAST_P = 1e-12


def drift(monitor: Any) -> Figure:
    """Draw the cost of each partition that a monitor compared, and the p-values of its clusters.

    Parameters
    ----------
    monitor : Monitor
        A monitor of :func:`daskmm.monitor` that has compared at least one partition.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the monitor has compared no partition.
    """
    looks = monitor.looks
    if not looks:
        raise ValueError("The monitor has compared no partition: call look(X) first.")
    numbers = np.array([look.number for look in looks])
    drifted = np.array([look.drifted for look in looks])
    ratios = np.array([look.cost / look.reference_cost for look in looks])
    figure = new_figure(figsize=(7.2, 5.4))
    above, below = figure.subplots(2, sharex=True, height_ratios=(1, 1.4))
    above.axhline(1.0, color=GREY, linewidth=1)
    above.plot(numbers, ratios, color=BLUE, **MARKS)
    above.plot(numbers[drifted], ratios[drifted], "o", color=RED, markersize=5)
    above.set_ylabel("cost / reference cost")
    open_frame(above)
    least = np.stack([look.p_values.min(axis=0) for look in looks], axis=1)
    certainty = -np.log10(np.maximum(least, _LEAST_P))
    k = len(least)
    image = below.imshow(
        certainty,
        aspect="auto",
        origin="lower",
        cmap="Reds",
        vmin=0.0,
        vmax=-np.log10(_LEAST_P),
        extent=(numbers[0] - 0.5, numbers[-1] + 0.5, -0.5, k - 0.5),
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=below, label="−log₁₀ p, adjusted")
    bar.ax.axhline(-np.log10(looks[-1].level), color="black", linewidth=1)
    below.set_ylabel("cluster")
    below.set_xlabel("look (red: drift)")
    for axis in (below.xaxis, below.yaxis):
        axis.get_major_locator().set_params(integer=True)
    n_drifted = int(drifted.sum())
    above.set_title(f"drift in {n_drifted:,} of {counted(len(looks), 'look')}", fontsize=11)
    first = ""
    if n_drifted:
        earliest = looks[int(drifted.argmax())]
        first = f"; the first is look {earliest.number}: {earliest.reasons[0]}"
    figure.set_label(
        f"Of {counted(len(looks), 'partition')}, {n_drifted:,} differ from the reference by more "
        f"than sampling error explains{first}. The cost of the last is "
        f"{ratios[-1]:.3g} times that of the reference."
    )
    return figure
