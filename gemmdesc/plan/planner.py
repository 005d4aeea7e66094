"""The object that holds what planning needs from call to call: libraries, the profile, and a bounded cache of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from gemmdesc.errors import Declined, InvalidInputError
from gemmdesc.kernels.meta import KernelMeta
from gemmdesc.kernels.tuned import UNTUNED, TunedTable
from gemmdesc.kernels.variants import Variant
from gemmdesc.library.interface import Library
from gemmdesc.library.torch_settings import TorchSettings
from gemmdesc.plan.answering import Answering
from gemmdesc.plan.cache import BoundedCache, QuickCache
from gemmdesc.plan.pinning import require_reference
from gemmdesc.plan.problems import problem_meta
from gemmdesc.plan.programs import FrequentCall, RepeatedCall
from gemmdesc.plan.resolving import Resolver
from gemmdesc.plan.saved import SavedAnswers
from gemmdesc.plan.values import CacheInfo, Following, MmCall, Plan, PlanKey, ProblemCall
from gemmdesc.problem import DeviceId, GemmProblem, LibraryId
from gemmdesc.profiles import Level, Profile, ProfileIndex, index_profile, profile_digest
from gemmdesc.routes import TensorMeta

#: Plans and declines that a planner keeps unless told otherwise.
DEFAULT_CAPACITY = 4096
#: The most shared memory that a program may ask for on sm_90, in bytes (CUDA C++ Programming Guide: 227 KiB).
DEFAULT_SHARED_BYTES = 227 * 1024

ProfileSource = Callable[[DeviceId, LibraryId], Profile | Declined]
#: Opens the answers that were saved for a card, a library and a profile's digest; None where none are kept.
SavedSource = Callable[[DeviceId, LibraryId, str], SavedAnswers | None]
#: Finds what was tuned for a card.
TunedSource = Callable[[DeviceId], TunedTable]


class _Measured(NamedTuple):
    """``digest`` is "" where there is no profile."""

    rows: ProfileIndex | Declined
    digest: str


class Planner:
    """Plans products on one CUDA device with one cuBLASLt; may be shared by threads.

    Args:
        open_library: gives a library for the use of one thread at a time; called at once unless ``identity`` is given,
            and whenever all that were made are in use, so never more often than threads plan at the same moment.
        profiles: finds the profile of a device and library; called at once and by :meth:`reload`.
        device_index: the device as torch counts.
        shared_bytes: the most shared memory that a program may ask for there.
        capacity: how many plans and declines are kept; those used longest ago go first.
        accept: the weakest evidence that a rule may have.
        runs_on: the card whose kernels are chosen, where that is another than the library's.
        objection: what a problem declines with before the library is asked, None where it may be asked.
        identity: the device and the library that ``open_library`` opens.
        saved: opens the answers of earlier processes, which are then taken before the library is asked.
        tuned: finds the configs that were measured to be fast on the card whose kernels are chosen; called at once and
            by :meth:`reload`.

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
        identity: tuple[DeviceId, LibraryId] | None = None,
        saved: SavedSource = lambda device, library, digest: None,
        tuned: TunedSource = lambda device: UNTUNED,
    ) -> None:
        self._plans: BoundedCache[PlanKey, Plan | Declined] = BoundedCache(capacity)
        self._frequent: QuickCache[Any, FrequentCall] = QuickCache(capacity)
        self._repeated: QuickCache[Any, RepeatedCall] = QuickCache(capacity)
        self._profiles, self._saved, self._tuned_source, self._capacity = profiles, saved, tuned, capacity
        self._device_index, self._shared_bytes, self._accept = device_index, shared_bytes, accept
        self._lock = Lock()
        self._declines: Counter[str] = Counter()
        self._warm: set[Variant] = set()
        self._answering = Answering(open_library, identity)
        self._device, self._library = self._answering.device, self._answering.library
        self._runs_on = runs_on or self._device
        self._resolver = Resolver(
            self._answering, self._plans.peek, runs_on=self._runs_on, shared_bytes=shared_bytes, objection=objection
        )
        self._measured, self._tuned = self._find(), tuned(self._runs_on)

    @property
    def device(self) -> DeviceId:
        return self._device

    @property
    def tuned(self) -> TunedTable:
        """The configs that were measured to be fast on the card; no picks where none were."""
        return self._tuned

    @property
    def device_index(self) -> int:
        return self._device_index

    @property
    def library(self) -> LibraryId:
        return self._library

    @property
    def saved(self) -> SavedAnswers | None:
        """The answers that are kept on disk; None where none are."""
        return self._answering.saved

    @property
    def frequent(self) -> QuickCache[Any, FrequentCall]:
        """Calls that were planned and prepared, by what :mod:`gemmdesc.ops` finds them by; :meth:`reload` forgets."""
        return self._frequent

    @property
    def repeated(self) -> QuickCache[Any, RepeatedCall]:
        """Likewise of other functions than ``matmul``, and of products with something after them."""
        return self._repeated

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
            found = self._resolver.resolve(key, measured.rows, self._tuned)
            self._plans.put(key, found)
        return found

    def _find(self) -> _Measured:
        profile = self._profiles(self._device, self._library)
        self._answering.saved = None
        if isinstance(profile, Declined):
            return _Measured(profile, "")
        digest = profile_digest(profile)
        self._answering.saved = self._saved(self._device, self._library, digest)
        return _Measured(index_profile(profile), digest)

    def reload(self) -> None:
        """Look for the profile and the tuned table again, for example after a probe, and forget all plans."""
        self._measured, self._tuned = self._find(), self._tuned_source(self._runs_on)
        self._plans.clear()
        self._frequent = QuickCache(self._capacity)
        self._repeated = QuickCache(self._capacity)

    def close(self) -> None:
        """Close the libraries that are not in use, and save answers; the planner opens new ones if it is used again."""
        self._answering.close()

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
