"""Power k-means and its relatives over passes: updates, sums, seeding, annealing on samples."""
