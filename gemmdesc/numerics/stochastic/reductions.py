"""Sums and products of matrices out of rounded operations, and the paper's product of perturbed operands."""

from __future__ import annotations

from typing import Any

from gemmdesc.errors import InvalidInputError
from gemmdesc.numerics.stochastic.run import Mode
from gemmdesc.operands.lanes import absorb, row_words, shift_right

#: Tells the draws of a perturbation from those of a rounding.
_PERTURBATION = 0x70657274


def total(value: Any, axis: int | None = None, *, order: str = "sequential") -> Any:
    """The sum along ``axis`` (None: over all elements in row-major order), one rounding for each addition.

    ``order``: ``sequential`` adds from left to right; ``pairwise`` halves what is left, the first half plus the second.
    An empty sum is 0.

    Raises:
        InvalidInputError: ``order`` is neither, or ``axis`` is none of the value's.
    """
    if order not in ("sequential", "pairwise"):
        raise InvalidInputError(f"order must be sequential or pairwise (got {order!r})")
    if axis is None:
        value, axis = value.reshape(size_of(value.shape)), 0
    if not -value.ndim <= axis < value.ndim:
        raise InvalidInputError(f"axis must be one of {value.ndim} axes (got {axis})")
    place = axis % value.ndim
    moved = value.made(value.xp.moveaxis(value.samples, place + 1, 1), value.xp.moveaxis(value.exact, place, 0))
    count = moved.shape[0]
    if count == 0:
        empty = moved.samples.sum(1)
        return value.made(empty, value.xp.ones_like(empty[0], dtype=value.xp.bool))
    if order == "pairwise":
        while count > 1:
            half = count // 2
            added = moved[:half] + moved[half : 2 * half]
            moved = added if count % 2 == 0 else concatenate(added, moved[2 * half :])
            count = moved.shape[0]
        return moved[0]
    running = moved[0]
    for i in range(1, count):
        running = running + moved[i]
    return running


def average(value: Any, axis: int | None = None, *, order: str = "sequential") -> Any:
    """:func:`total` over the number of elements; the division rounds once more."""
    count = size_of(value.shape) if axis is None else value.shape[axis]
    return total(value, axis, order=order) / float(count)


def matmul(left: Any, right: Any) -> Any:
    """The product of (m, k) and (k, n) values, one of which may be a plain matrix.

    In the default mode a product and an addition for each k, ascending, each rounded.  In the paper's mode
    :func:`perturbed_matmul`.

    Raises:
        InvalidInputError: the shapes do not fit.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise InvalidInputError(f"right must be a matrix of {left.shape[-1]} rows (got {tuple(right.shape)})")
    if left.run.settings.mode is Mode.PAPER:
        return perturbed_matmul(left, right)
    running = left[:, :1] * right[:1]
    for k in range(1, left.shape[1]):
        running = running + left[:, k : k + 1] * right[k : k + 1]
    return running


def perturbed_matmul(left: Any, right: Any) -> Any:
    """The data perturbation of arXiv 2607.25494, eq. 15 to 17: float64 products of operands moved by a relative eta.

    An element whose samples differ by less than eta, relative to its mean magnitude, is moved by a uniform number in
    [-1, 1] times eta times that magnitude and rounded; plain matrices are left as they are.  The draws are keyed by the
    run's seed and operation, as all others.
    """
    theirs = _perturbed(right) if hasattr(right, "samples") else left.constant(right)[None]
    value = left.xp.matmul(_perturbed(left), theirs)
    rounded, kept = left.run.close(left.xp, left.detached(value), None)
    return left.made(left.straight(value, rounded), kept & False)


def _perturbed(value: Any) -> Any:
    settings, xp = value.run.settings, value.xp
    eta = 2.0**-settings.format.fraction_bits if settings.perturbation is None else settings.perturbation
    if eta == 0:
        return value.samples
    found = value.estimate()
    tiny = 2.0**-settings.format.fraction_bits * 2.0**settings.format.min_exponent
    size = xp.maximum(xp.abs(found.mean), xp.abs(value.samples).sum(0) / settings.samples).clip(tiny, None)
    together = found.std / size < eta
    moved = value.samples + uniform(value.run, xp, value.samples) * eta * size
    rounded, _ = value.run.close(xp, value.detached(moved), None)
    return xp.where(together, value.straight(moved, rounded), value.samples)


def uniform(run: Any, xp: Any, like: Any) -> Any:
    """Lanes shaped as ``like``, uniform on [-1, 1), of the run's next operation."""
    run.draw(xp, (1,), like)
    key = absorb(run.settings.seed, run.operations, _PERTURBATION)
    where = {"device": like.device} if hasattr(like, "is_cuda") else {}
    index = xp.arange(size_of(like.shape), dtype=xp.int64, **where)
    words = shift_right(row_words(key, index), 11)
    return xp.asarray(words, dtype=xp.float64).reshape(like.shape) * 2.0**-52 - 1.0


def concatenate(first: Any, second: Any) -> Any:
    """Two values after one another along their first axis."""
    xp = first.xp
    return first.made(
        xp.concatenate([first.samples, second.samples], 1), xp.concatenate([first.exact, second.exact], 0)
    )


def size_of(shape: Any) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size
