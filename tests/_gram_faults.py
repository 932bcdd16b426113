"""Faults of Gram stores."""

from daskmm.gram.build import diagonal_fault, tile_faults
from daskmm.gram.store import GramStore, tile_name


def verify(path):
    """Map the name of each faulty tile, or "diagonal", to its fault: "missing" or "damaged"."""
    store = GramStore(path)
    faults = {tile_name(tile): fault for tile, fault in tile_faults(store).items()}
    return faults | ({"diagonal": fault} if (fault := diagonal_fault(store)) else {})
