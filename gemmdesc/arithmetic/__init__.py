"""What a descriptor means: accumulator models as data, and the CPU replay that executes any descriptor exactly.

``models`` reads the table of matrix instructions, ``replay`` runs a descriptor or a single instruction, ``epilogue``
holds the inputs that a descriptor's epilogue takes, ``step`` is the slow exact statement of one step.  The
specification is ``docs/arithmetic.md``.
"""
