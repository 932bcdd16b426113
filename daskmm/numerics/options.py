"""Names that parameters accept.

They are kept apart from the classes and functions that they name, whose import takes seconds: help
texts of the command line only list the names.
"""

KERNELS = ("rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
# Options for mean shift where the paper and its authors' program differ.
CONVENTIONS = ("auto", "paper", "reference")
