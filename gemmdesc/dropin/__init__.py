"""torch's own products from our kernels: every spelling, forward and backward."""
