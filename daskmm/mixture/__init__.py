"""Gaussian mixtures: EM on a sample, then over the table."""
