"""Which k take part in a tree, where there are too many for all to."""

from __future__ import annotations

from random import Random


def sampled_sites(k: int, most: int) -> list[int]:
    """All of ``k`` sites, or ``most`` of them: the same ones every time.

    The first and the last ones, multiples of every power of two between, and others anywhere: units that are dealt to
    many parts in turn are as long as some power of two as a rule, and so are the turns by which the parts are grouped.
    """
    if k <= most:
        return list(range(k))
    head, tail = most // 3, most // 8
    between = range(head, k - tail)
    chosen = _multiples(between, most // 5)
    rest = Random(k).sample(between, most - head - tail)
    others = [site for site in rest if site not in chosen][: most - head - tail - len(chosen)]
    return sorted({*range(head), *chosen, *others, *range(k - tail, k)})


def _multiples(between: range, most: int) -> set[int]:
    """At most ``most`` of ``between``, the first few multiples of each power of two, as many of every one."""
    found: set[int] = set()
    for times in range(1, most + 1):
        added = {times << e for e in range(between.stop.bit_length()) if times << e in between}
        if len(found | added) > most:
            break
        found |= added
    return found
