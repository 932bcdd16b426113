"""Map every block to a record and tree-reduce the records, on threads or any dask scheduler."""
