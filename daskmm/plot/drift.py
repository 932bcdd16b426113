"""A picture of drift; public in `daskmm.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daskmm.data.names import counted, spaced
from daskmm.plot.figures import BLUE, GREY, MARKS, RED, new_figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Smaller p-values get the same colour.
_LEAST_P = 1e-12
# Largest number of columns and clusters that are drawn; those that differ most are chosen.
_MOST_SUBJECTS = 30


def drift(monitor: Any) -> Figure:
    """Draw the cost of each batch that a monitor compared, and p-values of columns and clusters.

    Parameters
    ----------
    monitor : Monitor
        A monitor of :func:`daskmm.monitor` that has compared at least one batch.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the monitor has compared no batch.
    """
    looks = monitor.looks
    if not looks:
        raise ValueError("The monitor has compared no batch: call look(X) first.")
    numbers = np.array([look.number for look in looks])
    drifted = np.array([look.drifted for look in looks])
    ratios = np.array([look.cost_ratio for look in looks])
    figure = new_figure(figsize=(7.2, 5.4))
    above, below = figure.subplots(2, sharex=True, height_ratios=(1, 1.4))
    above.axhline(1.0, color=GREY, linewidth=1)
    above.plot(numbers, ratios, color=BLUE, **MARKS)
    above.plot(numbers[drifted], ratios[drifted], "o", color=RED, markersize=5)
    above.set_ylabel("cost / reference cost")
    open_frame(above)
    subjects = _most_different(looks)
    least = [[look.p_values.get(subject, 1.0) for look in looks] for subject in subjects]
    image = below.imshow(
        -np.log10(np.maximum(least, _LEAST_P)),
        aspect="auto",
        cmap="Reds",
        vmin=0.0,
        vmax=-np.log10(_LEAST_P),
        extent=(numbers[0] - 0.5, numbers[-1] + 0.5, len(subjects) - 0.5, -0.5),
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=below, label="−log₁₀ p, adjusted")
    bar.ax.axhline(-np.log10(looks[-1].level), color="black", linewidth=1)
    below.set_yticks(range(len(subjects)), [spaced(subject) for subject in subjects], fontsize=7)
    below.set_xlabel("look (red: drift)")
    below.xaxis.get_major_locator().set_params(integer=True)
    n_drifted = int(drifted.sum())
    above.set_title(f"drift in {n_drifted:,} of {counted(len(looks), 'look')}", fontsize=11)
    first = ""
    if n_drifted:
        earliest = looks[int(drifted.argmax())]
        first = f"; the first is look {earliest.number}: {earliest.reasons[0]}"
    figure.set_label(
        f"{n_drifted:,} of {counted(len(looks), 'look')} found larger differences than batches "
        f"usually have{first}. The cost of the last look is {ratios[-1]:.3g} times that of the "
        "reference."
    )
    return figure


def _most_different(looks: list[Any]) -> list[str]:
    """Return the columns and clusters with the least p-values, in their order."""
    least = {
        subject: min(look.p_values.get(subject, 1.0) for look in looks)
        for subject in looks[-1].p_values
    }
    chosen = sorted(least, key=least.__getitem__)[:_MOST_SUBJECTS]
    return [subject for subject in least if subject in chosen]
