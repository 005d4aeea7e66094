"""Choosing the problems on which a wrong rule would show."""

from __future__ import annotations

from gemmdesc.probe.telling import most_telling, shown
from tests.probe_samples import Order

PLAIN = Order(instruction_k=16, loop_step=32).rule()
LONGER = Order(instruction_k=16, loop_step=128).rule()
CEIL = Order(spans=("round_up(ceildiv(k, splitk_num), 64)",)).rule()
FLOOR = Order(spans=("round_up(floordiv(k, splitk_num), 64)",)).rule()


def where(k: int, splitk_num: int = 1, k_contiguous: int = 0) -> dict[str, int]:
    return {"k": k, "splitk_num": splitk_num, "k_contiguous": k_contiguous, "m": 8, "n": 8, "transa": 0, "transb": 0}


def test_a_rival_shows_only_where_it_owes_other_bits() -> None:
    # 128 * 3 + 16 leaves the same short first turn for both loops, 128 * 3 + 40 does not.
    assert not shown(PLAIN, [LONGER], where(400)).rivals
    assert shown(PLAIN, [LONGER], where(424)).rivals == {LONGER.text}


def test_mutants_of_turns_show_at_different_sizes() -> None:
    at_400, at_424 = (shown(PLAIN, (), where(k)).mutants for k in (400, 424))
    assert at_400 != at_424
    assert any("k_loop_step=128" in name for name in at_424)


def test_a_rule_that_declines_shows_nothing() -> None:
    rule = Order(spans=("sub(k, k)",)).rule()
    assert not shown(rule, [PLAIN], where(100)).rivals


def test_rivals_come_before_mutants() -> None:
    """Only one size in many tells the two roundings apart, and it need not show the most mutants."""
    sizes = [where(1000, 4), where(2049, 4), where(3000, 4), where(64 * 4 * 9 + 1, 4)]
    told = [i for i, e in enumerate(sizes) if shown(CEIL, [FLOOR], e).rivals]
    assert told
    assert len(told) < len(sizes)
    assert next(most_telling(CEIL, [FLOOR], sizes)) in told


def test_each_next_problem_adds_what_was_not_shown() -> None:
    # The second size shows as much as the first, but nothing new; the third shows less, and something new.
    sizes = [where(33), where(33), where(17)]
    assert list(most_telling(PLAIN, (), sizes)) == [0, 2, 1]
    assert not shown(PLAIN, (), sizes[2]).mutants <= shown(PLAIN, (), sizes[0]).mutants
