"""The loops over the rows of a block, compiled from C++; `daskmm.numerics` defines them."""
