"""(Entropy weighted) power k-means and Lloyd's k-means, as passes over blocks of rows.

`fit` holds the stages of a fit in order. A step is `sums` (what a pass computes) and `updates` (the
new centres and EWP's feature weights). Around it: `seeding` (starting centres), `sample_annealing`
and `trials` (work on samples), `restarts`, `empty_clusters`, `mahalanobis`, `medians`, and
`assignment` (labels, distances and cost).
"""
