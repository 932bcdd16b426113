"""What is done to a tile of rows before its distances are looked at.

Parts of `daskmm.compiled.kernel` and `daskmm.compiled.labels`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from daskmm.compiled.compiler import EXACT, part
from daskmm.compiled.panels import panel_norms
from daskmm.compiled.products import add_products, products, squared_norms, transpose, whiten
from daskmm.compiled.tile import WHITENED, assign, separate, to_model


@part(EXACT)
def to_model_exactly(block, code, frame, raw, z):
    """A tile in the model's coordinates, in double precision.

    Parameters
    ----------
    block : array of shape (n_rows, n_features)
    code : int
        Of the distortion.
    frame : tuple
        Mean and scale, repeated; whether the scale is not 1; whitening matrix.
    raw : array of shape (at least n_rows, n_features), or empty where rows are not whitened
        Room for what is to be whitened.
    z : array of shape (at least n_rows, n_features)
        Set.
    """
    means, scales, scaled, whitening = frame
    if code == WHITENED:
        to_model(block.ravel(), means, scales, scaled, raw.ravel())
        whiten(raw, len(block), whitening, z)
    else:
        to_model(block.ravel(), means, scales, scaled, z.ravel())


@part(EXACT)
def norms_and_products(block, z, held, by_feature, terms, planes, w, at_once, norms, d):
    """What the distances of a tile are made of: a term of each row, and products with centres.

    Parameters
    ----------
    block : array of shape (n_rows, n_features)
        In the input's units.
    z, by_feature : arrays
        As from `daskmm.compiled.products.room`; the second is set.
    held : array of shape (at least n_rows, n_features), or empty where there are no holes
        1 where there is a value.
    terms : array of shape (n_rows,), or empty where they are squared norms
    planes, w, at_once
        As in `daskmm.compiled.kernel.soft_sums`; without `at_once`, products are left to
        `daskmm.compiled.panels`.
    norms : array of shape (tile,)
        Set to the terms; what is beyond `n_rows` is no number in particular.
    d : array of shape (at least n_clusters, tile)
        Set to the products, likewise.
    """
    b = len(block)
    factors, constants, _, _, _, edges, ends = planes
    transpose(z, b, by_feature)
    if at_once == 0:
        panel_norms(by_feature, w, norms)
    else:
        if len(terms):
            assign(terms, norms)
        else:
            squared_norms(by_feature[0], w, norms)
        products(by_feature[0], b, at_once, factors, d)
    if len(held):
        add_products(held, b, constants, d)
    if len(edges):
        separate(block, edges, ends[0], ends[1], d)
