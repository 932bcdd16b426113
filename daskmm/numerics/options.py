"""Names that parameters take, apart from what they mean: the command line lists them.

Importing what they mean takes seconds, which `daskmm --help` would take, too.
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
