"""Pure numerics on one block of rows: numpy only, no dask, no state."""
