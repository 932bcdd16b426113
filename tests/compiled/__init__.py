"""The loops over the rows of a block, beside their definitions."""
