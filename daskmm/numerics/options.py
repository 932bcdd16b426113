"""Names that parameters accept.

They are kept apart from the classes and functions that they stand for, whose import takes seconds:
help texts of the command line list the names only.
"""

KERNELS = ("rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
# What mean shift follows where paper and authors' program differ.
CONVENTIONS = ("auto", "paper", "reference")
