"""Turn clusters of embeddings into lists on disk, an index of faiss, duplicates and topics.

Tables may be larger than memory. All functions take a fitted estimator with centres, and a
table that its `predict` takes.
"""

from daskmm.vectors.faiss_index import to_faiss
from daskmm.vectors.lists import read_list, write_lists
from daskmm.vectors.neighbors import (
    NearDuplicates,
    Recall,
    near_duplicates,
    recall,
    representatives,
)
from daskmm.vectors.topics import terms

__all__ = [
    "NearDuplicates",
    "Recall",
    "near_duplicates",
    "read_list",
    "recall",
    "representatives",
    "terms",
    "to_faiss",
    "write_lists",
]
