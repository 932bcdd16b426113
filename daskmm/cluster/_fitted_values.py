"""Checks of the fitted attributes of a model that is read from a file."""

from __future__ import annotations

from typing import Any

import numpy as np

# Arrays that predictions use, with a letter for each axis: clusters k, features f, coordinates c
# (as many as features, unless columns are mixed), rows n, kernels g, landmarks l, Nyström features
# d, and for a distribution sides s and quantiles q.
_AXES = {
    "cluster_centers_": "kc",
    "means_": "kc",
    "weights_": "k",
    "mean_": "c",
    "scale_": "c",
    "precision_": "cc",
    "cluster_sizes_": "k",
    "feature_weights_": "f",
    "X_fit_": "nc",
    "memberships_": "nk",
    "kernel_norms_": "gk",
    "kernel_weights_": "g",
    "landmarks_": "lc",
    "whitening_": "ld",
    "landmark_mean_": "d",
    "landmark_centers_": "kd",
    "typical_distances_": "k",
    "relative_distances_": "sq",
}
# The last two may be infinite.
_FINITE = (*tuple(_AXES)[:-2], "covariances_", "precisions_cholesky_")
_POSITIVE = ("scale_",)
# Attributes of a fit whose names do not end in an underscore.
_PRIVATE = ("_n_features_out", "_block_labels", "_sparse_rows")
_NOT_NEGATIVE = (
    "feature_weights_",
    "cluster_sizes_",
    "memberships_",
    "kernel_weights_",
    "weights_",
)


def is_fitted_name(name: str) -> bool:
    """Return whether a fit sets an attribute, which is not a parameter or one of scikit-learn's."""
    return (name.endswith("_") and not name.startswith("_")) or name in _PRIVATE


def check_fitted(fitted: dict[str, Any]) -> None:
    """Raise ValueError for fitted attributes that no fit can have set.

    It does so if a name is not one that a fit sets, if an array that predictions use has a value
    that is not finite or has the wrong sign, or if shapes disagree. The message names the
    attribute.
    """
    for name in fitted:
        if not is_fitted_name(name):
            raise ValueError(f"{name} is not the name of a fitted attribute")
    sizes = _given_sizes(fitted)
    for name in _FINITE[len(_AXES) - 2 :]:  # their shape depends on a parameter
        if name in fitted:
            _check_values(name, fitted[name])
    for name, axes in _AXES.items():
        if name in fitted:
            _check_values(name, fitted[name])
            _check_shape(name, fitted[name].shape, axes, sizes)


def _given_sizes(fitted: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return the lengths of axes that `n_clusters_` and `n_features_in_` give, with these names."""
    sizes: dict[str, tuple[int, str]] = {}
    mixed = "columns_" in fitted
    for name, axes in (("n_clusters_", "k"), ("n_features_in_", "f" if mixed else "fc")):
        if name in fitted:
            if not (type(fitted[name]) is int and fitted[name] > 0):
                raise ValueError(f"{name} is {fitted[name]!r}")
            sizes.update(dict.fromkeys(axes, (fitted[name], name)))
    return sizes


def _check_values(name: str, values: Any) -> None:
    if not (isinstance(values, np.ndarray) and values.dtype.kind in "fiu"):
        raise ValueError(f"{name} is not an array of numbers")
    if np.isnan(values).any() or (name in _FINITE and np.isinf(values).any()):
        raise ValueError(f"{name} holds a value that is not finite")
    if name in _POSITIVE and not (values > 0).all():
        raise ValueError(f"{name} holds a value that is not positive")
    if name in _NOT_NEGATIVE and not (values >= 0).all():
        raise ValueError(f"{name} holds a negative value")


def _check_shape(
    name: str, shape: tuple[int, ...], axes: str, sizes: dict[str, tuple[int, str]]
) -> None:
    """Compare a shape with the known lengths of axes in `sizes`, and add its own to them."""
    if len(shape) != len(axes):
        raise ValueError(f"{name} has {len(shape)} axes in place of {len(axes)}")
    for axis, length in zip(axes, shape, strict=True):
        expected, other = sizes.setdefault(axis, (length, name))
        if length != expected:
            raise ValueError(f"{name} has shape {shape}, which does not agree with {other}")
