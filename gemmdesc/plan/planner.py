"""The object that holds what planning needs from call to call: libraries, the profile, and a bounded cache of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from gemmdesc.errors import Declined, GemmdescError, InvalidInputError
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.variants import Variant
from gemmdesc.library.interface import Library
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan.cache import BoundedCache
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.plan.decide import decide, needs_launch
from gemmdesc.plan.pinning import require_reference
from gemmdesc.plan.posing import Posed, pose
from gemmdesc.plan.problems import problem_meta
from gemmdesc.plan.values import CacheInfo, Decision, Following, MmCall, Plan, PlanKey, ProblemCall
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch, LibraryId, Refused
from gemmdesc.profiles import Level, Profile, ProfileIndex, index_profile, profile_digest
from gemmdesc.routes import TensorMeta

#: Plans and declines that a planner keeps unless told otherwise.
DEFAULT_CAPACITY = 4096
#: The most shared memory that a program may ask for on sm_90, in bytes (CUDA C++ Programming Guide: 227 KiB).
DEFAULT_SHARED_BYTES = 227 * 1024

ProfileSource = Callable[[DeviceId, LibraryId], Profile | Declined]


class CaptureError(GemmdescError):
    """A CUDA graph is being captured, and the call needs something that must be made outside of one first."""


class _Measured(NamedTuple):
    """``digest`` is "" where there is no profile."""

    rows: ProfileIndex | Declined
    digest: str


class Planner:
    """Plans products on one CUDA device with one cuBLASLt; may be shared by threads.

    Args:
        open_library: gives a library for the use of one thread at a time; called at once, and again whenever all that
            were made are in use, so never more often than there are threads planning at the same moment.
        profiles: finds the profile of a device and library; called at once and by :meth:`reload`.
        device_index: the device as torch counts.
        shared_bytes: the most shared memory that a program may ask for there.
        capacity: how many plans and declines are kept; those used longest ago go first.
        accept: the weakest evidence that a rule may have.
        runs_on: the card whose kernels are chosen, where that is another than the library's.
        objection: what a problem declines with before the library is asked, None where it may be asked.

    Raises:
        LibraryError: the library cannot be opened.
        ProfileError: a profile that should apply is broken.
        InvalidInputError: ``capacity`` is less than 1.
    """

    def __init__(
        self,
        open_library: Callable[[], Library],
        profiles: ProfileSource,
        *,
        device_index: int = 0,
        shared_bytes: int = DEFAULT_SHARED_BYTES,
        capacity: int = DEFAULT_CAPACITY,
        accept: Level = Level.VERIFIED,
        runs_on: DeviceId | None = None,
        objection: Callable[[GemmProblem], Declined | None] = lambda problem: None,
    ) -> None:
        self._objection = objection
        self._plans: BoundedCache[PlanKey, Plan | Declined] = BoundedCache(capacity)
        self._open, self._profiles = open_library, profiles
        self._device_index, self._shared_bytes, self._accept = device_index, shared_bytes, accept
        self._lock = Lock()
        self._declines: Counter[str] = Counter()
        self._warm: set[Variant] = set()
        first = open_library()
        self._idle = [first]
        self._device, self._library = first.device, first.identity
        self._runs_on = runs_on or self._device
        self._card = card_arithmetic(self._runs_on.sm)
        self._measured = self._find()

    @property
    def device(self) -> DeviceId:
        return self._device

    @property
    def device_index(self) -> int:
        return self._device_index

    @property
    def library(self) -> LibraryId:
        return self._library

    @property
    def profile(self) -> Profile | Declined:
        """The profile in use, or why there is none."""
        index = self._measured.rows
        return index if isinstance(index, Declined) else index.profile

    def plan_mm(
        self,
        a: TensorMeta,
        b: TensorMeta,
        out: TensorMeta,
        settings: TorchSettings,
        *,
        captured: bool = False,
        pin: int | None = None,
    ) -> Plan | Declined:
        """The plan of ``torch.mm(a, b, out=out)``, (m, k) x (k, n) -> (m, n), on this device under ``settings``.

        ``pin``: every row is summed in the order that the library has where ``a`` and ``out`` are new tensors of so
        many rows, stored by rows or by columns as they are.

        Declines as :func:`gemmdesc.routes.route_mm` and :meth:`plan_problem` do.

        Raises:
            InvalidInputError: shapes do not fit, an ``out`` type that ``torch.mm`` does not take, or ``pin`` below 1.
            CaptureError: as :meth:`plan_problem`.
        """
        if pin is not None and (type(pin) is not int or pin < 1):
            raise InvalidInputError(f"pin must be a number of rows, at least 1 (got {pin!r})")
        return self._plan(MmCall(a=a, b=b, out=out, settings=settings, pin=pin), captured)

    def plan_problem(
        self,
        problem: GemmProblem,
        meta: KernelMeta,
        *,
        transposed: bool = False,
        captured: bool = False,
        reference: GemmProblem | None = None,
        following: Following | None = None,
    ) -> Plan | Declined:
        """The plan of a problem stated in the library's own terms; ``meta`` describes the tensors of its product.

        Of a batch it describes the first product; the others lie as far on as the problem says.  ``transposed``:
        ``meta`` is of the transposed product, as torch's row-major tensors are.  ``reference``: the library is asked
        for that problem, and its order there is that of every row here.  ``following``: what the kernels do after the
        product; ``meta.out`` is then of the result's type.

        Declines where there is no profile (``no_profile``), the library has no answer (``refused_by_library``), and as
        :func:`gemmdesc.plan.decide` does.

        Raises:
            InvalidInputError: a field of ``problem`` that the library's adapter cannot state, ``meta`` is of other
                sizes, or ``reference`` differs in what a pin leaves alone.
            CaptureError: ``captured``, and planning needs another library handle, or a launch that was not recorded.
        """
        p, got = problem, (meta.m, meta.n, meta.k)
        wanted = (p.n, p.m, p.k) if transposed else (p.m, p.n, p.k)
        if got != wanted:
            raise InvalidInputError(f"meta must have the problem's m, n and k, {wanted} (got {got})")
        if reference is not None:
            require_reference(problem, reference)
        call = ProblemCall(
            problem=problem, meta=meta, transposed=transposed, reference=reference, following=following
        )
        return self._plan(call, captured)

    def problem_meta(self, problem: GemmProblem, *, transposed: bool = False) -> KernelMeta:
        """What :meth:`plan_problem` takes of tensors stored as ``problem`` says; ``transposed`` as there."""
        return problem_meta(
            problem, transposed=transposed, sm_count=self._runs_on.sm_count, shared_bytes=self._shared_bytes
        )

    def _plan(self, call: MmCall | ProblemCall, captured: bool) -> Plan | Declined:
        measured = self._measured
        key = PlanKey(
            call=call,
            captured=captured,
            device=self._device,
            library=self._library,
            digest=measured.digest,
            accept=self._accept,
        )
        found = self._plans.get(key)
        if found is None:
            found = self._resolve(key, measured)
            self._plans.put(key, found)
        return found

    def _resolve(self, key: PlanKey, measured: _Measured) -> Plan | Declined:
        posed = pose(key.call, sm_count=self._runs_on.sm_count, shared_bytes=self._shared_bytes)
        if isinstance(posed, Declined):
            return posed
        asked = posed.reference or posed.problem
        objection = self._objection(asked)
        if objection is not None:
            return objection
        index = measured.rows
        if isinstance(index, Declined):
            return index
        with self._borrowed(key.captured) as library:
            answer = library.answer(asked)
            if isinstance(answer, Refused):
                reason = f"cuBLASLt {self._library.version} has no answer, {answer.status}, for {asked}"
                return Declined(code="refused_by_library", reason=reason)
            launch = None
            if needs_launch(index, asked, answer, self._accept):
                launch = self._launch(key, library, asked, answer)
        decision = decide(
            posed.problem, answer, launch, index=index, card=self._card, meta=posed.meta, accept=self._accept,
            transposed=posed.transposed, reference=posed.reference, following=posed.following,
        )  # fmt: skip
        if isinstance(decision, Declined):
            return decision
        return self._assemble(key, posed, answer, launch, decision)

    def _assemble(
        self, key: PlanKey, posed: Posed, answer: AlgoConfig, launch: Launch | None, decision: Decision
    ) -> Plan:
        return Plan(
            problem=posed.problem,
            answer=answer,
            launch=launch,
            row=decision.row,
            rule=decision.rule,
            regions=decision.regions,
            kernel=decision.kernel,
            meta=posed.meta,
            captured=key.captured,
            library=key.library,
            device=key.device,
            digest=key.digest,
            transposed=posed.transposed,
            reference=posed.reference,
        )

    def _launch(self, key: PlanKey, library: Library, problem: GemmProblem, answer: AlgoConfig) -> Launch | None:
        if not key.captured:
            return library.launch(problem, answer)
        # Recording a launch is a capture of its own; take the one that the same call recorded outside of this one.
        earlier = self._plans.peek(replace(key, captured=False))
        if isinstance(earlier, Plan) and earlier.answer == answer:
            return earlier.launch
        raise CaptureError(
            "plan must be made once outside the capture, as its rule reads the library's own launch; run this call, or "
            f"gemmdesc.warmup, before the capture (got {problem})"
        )

    @contextmanager
    def _borrowed(self, captured: bool) -> Iterator[Library]:
        with self._lock:
            library = self._idle.pop() if self._idle else None
        if library is None:
            if captured:
                raise CaptureError(
                    "planner must have a library handle to spare during a capture, as making one then would break it; "
                    "plan this call before the capture (got all handles in use by other threads)"
                )
            library = self._open()
        try:
            yield library
        finally:
            with self._lock:
                self._idle.append(library)

    def _find(self) -> _Measured:
        profile = self._profiles(self._device, self._library)
        if isinstance(profile, Declined):
            return _Measured(profile, "")
        return _Measured(index_profile(profile), profile_digest(profile))

    def reload(self) -> None:
        """Look for the profile again, for example after a probe, and forget all plans."""
        self._measured = self._find()
        self._plans.clear()

    def close(self) -> None:
        """Close the libraries that are not in use; the planner opens new ones if it is used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for library in idle:
            if isinstance(library, AbstractContextManager):
                library.__exit__(None, None, None)

    def cache_info(self) -> CacheInfo:
        """Hits, misses, size and capacity of the plan cache."""
        return self._plans.info()

    def count_decline(self, declined: Declined) -> None:
        """Note that the library ran a call instead of us."""
        with self._lock:
            self._declines[declined.code] += 1

    def decline_counts(self) -> dict[str, int]:
        """How many calls the library ran instead of us (``on_decline="library"``), by code of the decline."""
        with self._lock:
            return dict(self._declines)

    def cold(self, variants: frozenset[Variant]) -> frozenset[Variant]:
        """Those of ``variants`` that no launch through this planner has compiled yet."""
        with self._lock:
            return variants - self._warm

    def mark_warm(self, variants: frozenset[Variant]) -> None:
        """Note that these are compiled and loaded on this device."""
        with self._lock:
            self._warm |= variants
