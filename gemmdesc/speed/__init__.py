"""How fast the kernels are beside the library: products, sessions, what they come to (``docs/performance.md``)."""
