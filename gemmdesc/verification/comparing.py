"""Comparing tensors on a device, all elements as integers, and looking closer where a draw differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmdesc.verification.bench import Compared, Comparison, Prepared
from gemmdesc.verification.cases import Case
from gemmdesc.verification.draws import Draw, operands
from gemmdesc.verification.records import REFERENCES, Located, Outcome
from gemmdesc.verification.tensors import make_a, make_b

if TYPE_CHECKING:
    import torch

#: One side of a product: bit patterns as integers, or why a reference did not run.
Reference = Callable[["Prepared", "torch.Tensor", "torch.Tensor"], "torch.Tensor | str"]
Ours = Callable[["Prepared", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
#: Runs of a reference beyond the first that tell one whose bytes vary from one that differs.
_AGAIN = 8


class OurSideError(Exception):
    """Our side raised; the message says what."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorComparer:
    """``references``: by name, each of :data:`~gemmdesc.verification.records.REFERENCES`."""

    place: torch.device
    ours: Ours
    references: Mapping[str, Reference]

    def compare(self, prepared: Prepared, draws: Sequence[Draw]) -> Comparison:
        """All draws of a case; an exhausted memory is tried once more, then recorded.

        What our side raises counts as different; an error of the device itself ends this process's usefulness.
        """
        import torch

        try:
            try:
                return self._compare(prepared, draws)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return self._compare(prepared, draws)
        except torch.OutOfMemoryError as error:
            return _all(draws, Outcome.REFERENCE_FAILED, f"out of memory: {first_line(error)}")
        except OurSideError as error:
            return _all(draws, Outcome.DIFFERENT, f"our kernel raised {error}")
        except RuntimeError as error:
            return _all(draws, Outcome.REFERENCE_FAILED, first_line(error), fatal=True)

    def _compare(self, prepared: Prepared, draws: Sequence[Draw]) -> Comparison:
        """Nothing waits for the device until all draws are queued; draws that differ are then looked at one by one."""
        import torch

        flags = torch.zeros((len(draws), 3), dtype=torch.bool, device=self.place)
        failures: dict[tuple[int, str], str] = {}
        for row, draw in enumerate(draws):
            failed = self._queue(prepared, draw, flags[row])
            failures |= {(row, name): why for name, why in failed.items()}
        raised = flags.tolist()
        found: list[Compared] = []
        for row, draw in enumerate(draws):
            for column, name in enumerate(REFERENCES):
                if (row, name) in failures:
                    why = failures[row, name]
                    found.append(Compared(draw=draw, reference=name, outcome=Outcome.REFERENCE_FAILED, failure=why))
                elif raised[row][column]:
                    found.append(self._look_closer(prepared, draw, name))
                else:
                    found.append(Compared(draw=draw, reference=name, outcome=Outcome.EQUAL))
        return Comparison(compared=tuple(found), torch_is_cublaslt=sum(not flagged[2] for flagged in raised))

    def _queue(self, prepared: Prepared, draw: Draw, flags: torch.Tensor) -> dict[str, str]:
        """Enqueue one draw: whether ours differs from each reference, and these from one another; why any failed."""
        a, b = self._operands(prepared.case, draw)
        ours = self._run_ours(prepared, a, b)
        made = {name: reference(prepared, a, b) for name, reference in self.references.items()}
        tensors = [made[name] for name in REFERENCES]
        for column, other in enumerate(tensors):
            if not isinstance(other, str):
                flags[column] = (ours != other).any()
        one, two = tensors
        flags[2] = True if isinstance(one, str) or isinstance(two, str) else (one != two).any()
        return {name: other for name, other in made.items() if isinstance(other, str)}

    def _operands(self, case: Case, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = operands(case, draw)
        return make_a(case, a, self.place), make_b(case, b, self.place)

    def _run_ours(self, prepared: Prepared, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        import torch

        try:
            return self.ours(prepared, a, b)
        except (torch.OutOfMemoryError, *device_errors()):
            raise
        except Exception as error:  # whatever a compiler may raise is our side's failure
            raise OurSideError(f"{type(error).__name__}: {first_line(error)}") from error

    def _look_closer(self, prepared: Prepared, draw: Draw, name: str) -> Compared:
        """Tell a reference whose bytes vary from one that differs, and locate the first element that does."""
        import torch

        a, b = self._operands(prepared.case, draw)
        expected = self.references[name](prepared, a, b)
        if isinstance(expected, str):
            return Compared(draw=draw, reference=name, outcome=Outcome.REFERENCE_FAILED, failure=expected)
        for _ in range(_AGAIN):
            again = self.references[name](prepared, a, b)
            if isinstance(again, str) or not torch.equal(expected, again):
                return Compared(draw=draw, reference=name, outcome=Outcome.NONDETERMINISTIC)
        located = locate(expected, self._run_ours(prepared, a, b), draw, name)
        why = "" if located is not None else "differed once, and not when run again"
        return Compared(draw=draw, reference=name, outcome=Outcome.DIFFERENT, located=located, failure=why)


def locate(expected: torch.Tensor, got: torch.Tensor, draw: Draw, reference: str) -> Located | None:
    """The first element, in row-major order, that differs between two matrices of integers; None where none does."""
    differs = expected != got
    count = int(differs.sum())
    if not count:
        return None
    row = int(differs.any(dim=1).byte().argmax())
    column = int(differs[row].byte().argmax())
    mask = (1 << 8 * expected.element_size()) - 1
    return Located(
        reference=reference, draw=draw.number, family=draw.family.value, row=row, column=column,
        expected_bits=int(expected[row, column]) & mask, got_bits=int(got[row, column]) & mask, count=count,
        size=expected.numel(),
    )  # fmt: skip


def _all(draws: Sequence[Draw], outcome: Outcome, why: str, fatal: bool = False) -> Comparison:
    found = [Compared(draw=d, reference=r, outcome=outcome, failure=why) for d in draws for r in REFERENCES]
    return Comparison(compared=tuple(found), fatal=fatal)


def device_errors() -> tuple[type[Exception], ...]:
    """What torch raises once a CUDA context is lost."""
    import torch

    found = getattr(torch, "AcceleratorError", None)
    return () if found is None else (found,)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type's name."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
