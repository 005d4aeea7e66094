"""Computations whose stability is known: classical formulas, operators, and CADNA's tutorial programs."""
