"""What differs between torch's releases in how products reach cuBLAS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmdesc.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True, order=True)
class Release:
    """A release of torch, ``major`` and ``minor``."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Release:
        """From ``torch.__version__``, such as ``2.11.0+cu130``.

        Raises:
            InvalidInputError: it does not begin with two dotted integers.
        """
        match = re.match(r"(\d+)\.(\d+)", text)
        if match is None:
            raise InvalidInputError(f"version must begin with two dotted integers (got {text!r})")
        return cls(major=int(match[1]), minor=int(match[2]))

    @property
    def fuses_matrices_only(self) -> bool:
        """Whether a bias is fused only where ``a``, too, has more than one row and column.

        2.11's machine code looks at ``b``'s sizes alone, and a card's bytes agree; sources before it say otherwise.
        """
        return self < READ_FOR

    @property
    def tells_bias_for_d(self) -> bool:
        """Whether the heuristic is told the bias's alignment as D's."""
        return self <= READ_FOR

    @property
    def splits_bias_as_c(self) -> bool:
        """Whether an answer that splits k takes the bias as C instead of in the epilogue."""
        return self > READ_FOR

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The release whose source the routes were read from, and whose products they were compared with on a card.
READ_FOR = Release(major=2, minor=11)
