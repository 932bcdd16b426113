"""(Entropy weighted) power k-means and Lloyd's k-means, as passes over blocks of rows.

`fit` has the stages of a fit in order. A step has two parts: a pass computes `sums`, and from
these `updates` makes the new centres and EWP's feature weights. `seeding` chooses starting
centres; `sample_annealing` and `trials` work on samples; `restarts`, `empty_clusters`,
`mahalanobis` and `medians` improve the result; `assignment` computes labels, distances and cost.
"""
