"""From a call to its plan: the problem is posed, the library answers, and what follows is decided and put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmdesc.errors import Declined
from gemmdesc.kernels.tuned import TunedTable
from gemmdesc.plan.answering import Answered, Answering, Asked
from gemmdesc.plan.cards import card_arithmetic
from gemmdesc.plan.decide import decide, needs_launch
from gemmdesc.plan.posing import Posed, pose
from gemmdesc.plan.values import Decision, Plan, PlanKey
from gemmdesc.problem import AlgoConfig, DeviceId, GemmProblem, Launch
from gemmdesc.profiles import ProfileIndex


class Resolver:
    """Plans single calls; keeps none.

    Args:
        answering: the library's answers.
        made: the plan that was made for a key, None where none is kept.
        runs_on: the card whose kernels are chosen.
        shared_bytes: the most shared memory that a program may ask for there.
        objection: what a problem declines with before the library is asked, None where it may be asked.
    """

    def __init__(
        self,
        answering: Answering,
        made: Callable[[PlanKey], Plan | Declined | None],
        *,
        runs_on: DeviceId,
        shared_bytes: int,
        objection: Callable[[GemmProblem], Declined | None],
    ) -> None:
        self._answering, self._made, self._objection = answering, made, objection
        self._runs_on, self._shared_bytes = runs_on, shared_bytes
        self._card = card_arithmetic(runs_on.sm)

    def resolve(self, key: PlanKey, rows: ProfileIndex | Declined, tuned: TunedTable) -> Plan | Declined:
        """The plan of ``key.call`` by ``rows``, with the configs of ``tuned``.

        Raises:
            CaptureError: as :meth:`gemmdesc.plan.answering.Answering.ask`.
        """
        posed = pose(key.call, sm_count=self._runs_on.sm_count, shared_bytes=self._shared_bytes)
        if isinstance(posed, Declined):
            return posed
        asked = posed.reference or posed.problem
        objection = self._objection(asked)
        if objection is not None:
            return objection
        if isinstance(rows, Declined):
            return rows
        decided = self._decide(key, posed, asked, rows, tuned)
        return decided if isinstance(decided, Declined) else self._assemble(key, posed, *decided)

    def _decide(
        self, key: PlanKey, posed: Posed, asked: GemmProblem, index: ProfileIndex, tuned: TunedTable
    ) -> tuple[Answered, Decision] | Declined:
        """The library's answer to ``asked`` and what follows from it; a saved answer that means another order is not
        believed.
        """
        how = Asked(
            captured=key.captured, earlier=lambda answer: self._earlier_launch(key, answer),
            needs_launch=lambda answer: needs_launch(index, asked, answer, key.accept),
        )  # fmt: skip
        for fresh in (False, True):
            answered = self._answering.ask(asked, how, fresh=fresh)
            if isinstance(answered, Declined):
                return answered
            decision = decide(
                posed.problem, answered.answer, answered.launch, index=index, card=self._card, meta=posed.meta,
                accept=key.accept, transposed=posed.transposed, reference=posed.reference,
                following=posed.following, tuned=tuned,
            )  # fmt: skip
            # The regions of a call that is pinned, or followed by more, are not those of the problem that is asked.
            other = posed.reference is not None or posed.following is not None
            own = None if isinstance(decision, Declined) or other else decision.regions
            if own is None or self._answering.agrees(asked, answered, own):
                self._answering.keep(asked, answered.answer, answered.launch, own)
                return decision if isinstance(decision, Declined) else (answered, decision)
        raise AssertionError("what the library was just asked has no order to differ from")

    def _assemble(self, key: PlanKey, posed: Posed, answered: Answered, decision: Decision) -> Plan:
        plan = Plan(
            problem=posed.problem,
            answer=answered.answer,
            launch=answered.launch,
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
        if key.captured:
            # What the same call was prepared for outside of the capture serves within.
            earlier = self._made(replace(key, captured=False))
            if isinstance(earlier, Plan) and (earlier.kernel, earlier.meta) == (plan.kernel, plan.meta):
                plan.programs.adopt(earlier.programs)
        return plan

    def _earlier_launch(self, key: PlanKey, answer: AlgoConfig) -> Launch | None:
        """What the same call recorded outside of a capture."""
        earlier = self._made(replace(key, captured=False))
        return earlier.launch if isinstance(earlier, Plan) and earlier.answer == answer else None
