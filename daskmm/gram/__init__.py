"""Gram matrices, stored or recomputed, and kernel power k-means on them."""
