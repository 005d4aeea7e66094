"""How far a result can be trusted: stochastic arithmetic around matrix products, and inside them."""
