"""The error classes, and the value that stands for a refusal to guess.

Misuse raises; not knowing does not.  A function that cannot answer returns :class:`Declined`, and only the
outermost call that has to hand over a tensor turns it into :class:`DeclinedError`.
"""

from __future__ import annotations

from dataclasses import dataclass


class GemmdescError(Exception):
    """Base class of every error that gemmdesc raises on purpose."""


class InvalidInputError(GemmdescError, ValueError):
    """An argument is not what the call requires; the message starts with its name and ends with ``(got ...)``."""


class RefusedByTorchError(InvalidInputError, RuntimeError):
    """Operands that torch refuses as well, with a ``RuntimeError``."""


class RefusedTypeError(InvalidInputError, TypeError):
    """Operands that torch refuses as well, with a ``TypeError``."""


class RefusedIndexError(InvalidInputError, IndexError):
    """Operands that torch refuses as well, with an ``IndexError``."""


class DescriptorError(InvalidInputError):
    """A descriptor, rule or expression is malformed; the message starts with the field."""


class LibraryError(GemmdescError):
    """A cuBLASLt library is missing, unreadable, or failed in a call that was expected to work."""


class ProfileError(GemmdescError):
    """A profile file is truncated, foreign, or contradicts itself."""


class BookError(GemmdescError):
    """A book of recorded answers is truncated, foreign, contradicts itself, or is of another card or release."""


class LaunchError(GemmdescError):
    """The CUDA driver refused a kernel launch or a tensor descriptor."""


class LaunchWarning(UserWarning):
    """Kernels have to be started by Triton's own launcher, which costs more of the host's time."""


class CampaignError(GemmdescError):
    """A probe campaign cannot start or resume as asked."""


@dataclass(frozen=True, kw_only=True)
class Declined:
    """No answer, and why.

    ``reason`` is one sentence for a person.  ``code`` groups declines in counts; it is one of
    ``no_profile``, ``no_rule``, ``out_of_scope``, ``nondeterministic``, ``refused_by_library``,
    ``unsupported_input``, ``flags``, ``kernel``, ``not_in_book``, ``no_reference``.
    """

    code: str
    reason: str


class DeclinedError(GemmdescError):
    """Raised where a product was asked for and none can be promised; carries the :class:`Declined`."""

    def __init__(self, declined: Declined) -> None:
        super().__init__(f"declined ({declined.code}): {declined.reason}")
        self.declined = declined
