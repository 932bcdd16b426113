"""The MM driver: annealing, stopping, history, journal and checkpoint."""
