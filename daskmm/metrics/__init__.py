"""Agreement of two labelings, and quality of one, for numpy or dask data of any size."""

from daskmm.metrics.agreement import (
    adjusted_rand_score,
    contingency_matrix,
    normalized_mutual_info_score,
    variation_of_information,
)
from daskmm.metrics.quality import (
    Estimate,
    calinski_harabasz_score,
    silhouette_score,
    simplified_silhouette_score,
)

__all__ = [
    "Estimate",
    "adjusted_rand_score",
    "calinski_harabasz_score",
    "contingency_matrix",
    "normalized_mutual_info_score",
    "silhouette_score",
    "simplified_silhouette_score",
    "variation_of_information",
]
