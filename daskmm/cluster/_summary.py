"""Summary of a fit as HTML, for notebooks."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from daskmm.data.names import (
    ALIKE,
    counted,
    feature_names,
    features_explained,
    features_found,
    is_standardised,
    listed,
    n_clusters_of,
    spaced,
)
from daskmm.storage.readable import readable_seconds

# Number of features listed.
_HEAVIEST = 5
# Distortions that leave the choice of the scale to the user.
_SCALED = ("sqeuclidean", "euclidean", "manhattan")
_STYLE = "text-align: left; padding: .1em .8em .1em 0; border: 0; background: transparent;"


def fitted_html(model: Any) -> str:
    """Return a small table of the results of a fit; empty for an estimator that is not fitted.

    Lazy labels are not computed.
    """
    if not getattr(model, "history_", None):
        return ""
    rows = "".join(
        f'<tr><th scope="row" style="{_STYLE} font-weight: 500;">{html.escape(spaced(name))}</th>'
        f'<td style="{_STYLE}">{html.escape(spaced(value))}</td></tr>'
        for name, value in _facts(model).items()
    )
    return (
        '<table class="daskmm-fitted" style="margin: .4em 0; border-collapse: collapse; '
        f'color: inherit;"><tbody>{rows}</tbody></table>'
    )


def _facts(model: Any) -> dict[str, str]:
    """Return names and values of the results of a fit."""
    facts = {"clusters": f"{n_clusters_of(model):,}"}
    if (sizes := _sizes(model)) is not None:
        facts["sizes, largest first"] = listed([f"{size:,}" for size in sorted(sizes)[::-1]])
    if hasattr(model, "inertia_"):
        facts["cost (inertia_)"] = f"{model.inertia_:.6g}"
    if hasattr(model, "lower_bound_"):
        facts["log-likelihood per row"] = f"{model.lower_bound_:.6g}"
    if (scale := scale_in_words(model)) is not None:
        facts["features"] = scale
    if hasattr(model, "bandwidth_"):
        facts["bandwidth"] = f"{model.bandwidth_:.4g}"
    weights = getattr(model, "feature_weights_", None)
    if weights is not None:
        names, order = feature_names(model), np.argsort(-weights, kind="stable")[:_HEAVIEST]
        heaviest = ", ".join(f"{names[i]} ({weights[i]:.3f})" for i in order)
        facts["heaviest features"] = heaviest if len(features_found(weights)) else ALIKE
    if explained := features_explained(model):
        facts["largest gains beyond noise"] = ", ".join(explained)
    facts["fit"] = (
        f"{counted(model.n_iter_, 'iteration')}, {counted(model.n_passes_, 'pass')}, "
        f"{readable_seconds(model.history_[-1].seconds)}"
    )
    return facts


def scale_in_words(model: Any) -> str | None:
    """Say whether features were standardised, and why; None where there was no choice."""
    if hasattr(model, "standardize_path_"):
        return str(model.standardize_path_)
    asked, scale = getattr(model, "standardize", None), getattr(model, "scale_", None)
    distortion = getattr(model, "distortion", None)  # None for kernels and mean shifts
    if asked is None or scale is None or distortion not in (None, *_SCALED):
        return None
    if is_standardised(model):
        return "standardised"
    if asked != "auto" or distortion is None:
        return "not standardised"
    return (
        "not standardised: 'auto' decides only for squared distances of dense rows, and otherwise "
        "leaves features as they are"
    )


def _sizes(model: Any) -> list[int] | None:
    """Return the number of rows of each cluster, if the labels are in memory."""
    labels = getattr(model, "labels_", None)
    if not isinstance(labels, np.ndarray):
        return None
    known = labels[labels >= 0]  # rows without any value have the label −1
    sizes: list[int] = np.bincount(known, minlength=n_clusters_of(model)).tolist()
    return sizes
