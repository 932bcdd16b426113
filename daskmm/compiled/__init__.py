"""The numba loops behind the definitions of `daskmm.numerics`; numba is imported nowhere else."""
