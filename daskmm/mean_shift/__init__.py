"""Weighted blurring mean shift."""
