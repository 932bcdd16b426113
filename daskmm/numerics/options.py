"""Names that parameters accept.

They are separate from the classes and functions that they name, since importing these takes seconds
and help texts of the command line need only the names.
"""

KERNELS = ("rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
# Variants of mean shift, for points in which the paper and its authors' program differ.
CONVENTIONS = ("auto", "paper", "reference")
