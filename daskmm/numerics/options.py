"""Names that parameters accept.

They are kept apart from the classes and functions that they stand for, whose import takes seconds:
`daskmm --help` lists the names only.
"""

DISTORTIONS = (
    "sqeuclidean",
    "kl",
    "poisson",
    "itakura-saito",
    "gamma",
    "logistic",
    "mahalanobis",
    "cosine",
    "manhattan",
    "euclidean",
    "mixed",
)
KERNELS = ("rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
# What becomes of the centres of emptied clusters.
EMPTY_CLUSTER = ("farthest", "random", "restart", "error")
# What mean shift follows where paper and authors' program differ.
CONVENTIONS = ("auto", "paper", "reference")
