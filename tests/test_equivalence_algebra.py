"""Every identity that the expression table applies, over all operands it can be tried on, and where it must not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmdesc.arithmetic.step import encode_number
from gemmdesc.dtypes import DType
from gemmdesc.equivalence.functions import NAMED, Bits
from gemmdesc.equivalence.nodes import Ids
from gemmdesc.equivalence.table import Table

EVERY_16 = np.arange(1 << 16, dtype=np.uint64)
#: All float32 whose lower half is zero, all widened float16, and patterns at the edges.
WIDE = np.unique(np.concatenate([EVERY_16 << np.uint64(16), NAMED["cvt.f32.f16"](EVERY_16)]))
EDGES = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F800001,
     0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7FC00000, 0x7F800001, 0xFFC00001],
    np.uint64,
)  # fmt: skip


def ids(table: Table, *offsets: int) -> list[Ids]:
    """Float32 elements behind parameter 0."""
    return [table.leaves(np.zeros(1, np.int64), np.array([4 * o], np.int64), 4) for o in offsets]


def constant(table: Table, bits: int, width: int = 4) -> Ids:
    return table.constants(np.array([bits], np.uint64), width)


@pytest.mark.parametrize("name", ["add.f32", "mul.f32"])
def test_sums_and_products_commute(name: str) -> None:
    f = NAMED[name]
    for y in EDGES:
        other = np.full_like(WIDE, y)
        assert (f(WIDE, other) == f(other, WIDE)).all()
    table = Table()
    a, b = ids(table, 0, 1)
    assert table.make(name, 4, a, b) == table.make(name, 4, b, a)
    assert table.make("sub.f32", 4, a, b) != table.make("sub.f32", 4, b, a)
    assert table.make("div.full.f32", 4, a, b) != table.make("div.full.f32", 4, b, a)


def test_factors_of_an_fma_commute_and_its_addend_does_not() -> None:
    f = NAMED["fma.rn.f32"]
    for y, z in itertools.product(EDGES, EDGES[:8]):
        other, addend = np.full_like(WIDE, y), np.full_like(WIDE, z)
        assert (f(WIDE, other, addend) == f(other, WIDE, addend)).all()
    table = Table()
    a, b, c = ids(table, 0, 1, 2)
    assert table.make("fma.rn.f32", 4, a, b, c) == table.make("fma.rn.f32", 4, b, a, c)
    assert table.make("fma.rn.f32", 4, a, b, c) != table.make("fma.rn.f32", 4, a, c, b)


def test_minus_zero_is_neutral_for_arithmetic_results() -> None:
    """An arithmetic result is any pattern but a NaN other than the canonical one."""
    add = NAMED["add.f32"]
    x = np.unique(np.concatenate([WIDE, EDGES]))
    number = (x & np.uint64(0x7FFFFFFF)) <= np.uint64(0x7F800000)
    results = np.concatenate([x[number], [np.uint64(0x7FFFFFFF)]])
    minus, plus = np.full_like(results, 0x80000000), np.zeros_like(results)
    assert (add(results, minus) == results).all()
    assert (add(results, plus) != results).sum() == 1
    table = Table()
    a, b = ids(table, 0, 1)
    total = table.make("add.f32", 4, a, b)
    minus_zero = constant(table, 0x80000000)
    assert table.make("add.f32", 4, total, minus_zero) == total
    assert table.make("add.f32", 4, minus_zero, total) == total


@pytest.mark.parametrize("case", ["loaded", "plus zero", "flushed", "half precision", "selected"])
def test_minus_zero_stays_where_it_shows(case: str) -> None:
    table = Table()
    a, b = ids(table, 0, 1)
    total = table.make("add.f32", 4, a, b)
    name, x, zero, width = "add.f32", total, constant(table, 0x80000000), 4
    if case == "loaded":
        x = a
    elif case == "plus zero":
        zero = constant(table, 0)
    elif case == "flushed":
        name = "add.ftz.f32"
    elif case == "half precision":
        # The bits of a float16 product may spell a bfloat16 NaN with a payload.
        half = table.extract(a, 0, 2)
        name, x, zero, width = "add.bf16", table.make("mul.f16", 2, half, half), constant(table, 0x8000, 2), 2
    else:
        x = table.make("selp.b32", 4, a, b, table.make("setp.gt.f32", 1, a, b))
    assert table.make(name, width, x, zero) != x


@pytest.mark.parametrize("name", ["max.f32", "min.f32", "max.NaN.f32", "min.NaN.f32"])
def test_a_maximum_is_a_function_of_the_set_of_its_arguments(name: str) -> None:
    f = NAMED[name]
    a, b, c = (np.array(x, np.uint64) for x in zip(*itertools.product(EDGES, repeat=3), strict=True))
    tree = f(f(a, b), c)
    for x, y, z in itertools.permutations((a, b, c)):
        assert (f(f(x, y), z) == tree).all()
        assert (f(x, f(y, z)) == tree).all()
    assert (f(f(a, b), f(a, b)) == f(a, b)).all()
    for y in EDGES:
        other = np.full_like(WIDE, y)
        assert (f(WIDE, other) == f(other, WIDE)).all()


@pytest.mark.parametrize("name", [pytest.param("max.f32", marks=pytest.mark.slow), "min.NaN.f32"])
def test_trees_of_a_maximum_are_one_node_and_other_sets_are_not(name: str) -> None:
    table = Table()
    leaves = ids(table, *range(8))

    def chain(order: list[int]) -> Ids:
        total = leaves[order[0]]
        for i in order[1:]:
            total = table.make(name, 4, total, leaves[i])
        return total

    pairs = [table.make(name, 4, leaves[2 * i], leaves[2 * i + 1]) for i in range(4)]
    halves = [table.make(name, 4, pairs[2 * i], pairs[2 * i + 1]) for i in range(2)]
    tree = table.make(name, 4, *halves)
    assert tree == chain(list(range(8))) == chain([7, 3, 1, 0, 2, 6, 5, 4])
    assert tree != chain(list(range(7)))
    assert table.make(name, 4, tree, tree) == tree
    assert table.make(name, 4, leaves[0], leaves[0]) != leaves[0]
    other = "min.NaN.f32" if name == "max.f32" else "max.f32"
    assert table.make(other, 4, leaves[0], leaves[1]) != pairs[0]
    assert table.make(name, 4, table.make(other, 4, *leaves[:2]), leaves[2]) != chain([0, 1, 2])
    flushed = name.replace(".f32", ".ftz.f32")
    first = table.make(flushed, 4, table.make(flushed, 4, *leaves[:2]), leaves[2])
    assert first != table.make(flushed, 4, leaves[0], table.make(flushed, 4, *leaves[1:3]))


def test_fusing_cannot_be_seen_where_both_factors_are_float16() -> None:
    random = np.random.default_rng(3)
    widen, fma, mul, add = (NAMED[n] for n in ("cvt.f32.f16", "fma.rn.f32", "mul.f32", "add.f32"))
    x = widen(EVERY_16)
    for _ in range(24):
        y = widen(random.permutation(EVERY_16))
        product = mul(x, y)
        near = (product + random.integers(-2, 3, len(x)).astype(np.uint64)) ^ np.uint64(0x80000000)
        anything = random.integers(0, 1 << 32, len(x), dtype=np.uint64)
        for z in (anything, near, random.choice(EDGES, len(x))):
            assert (fma(x, y, z) == add(product, z)).all()
    table = Table()
    a, b, c = ids(table, 0, 1, 2)
    halves = [table.make("cvt.f32.f16", 4, table.extract(v, 0, 2)) for v in (a, b)]
    fused = table.make("fma.rn.f32", 4, *halves, c)
    assert fused == table.make("add.f32", 4, table.make("mul.f32", 4, *halves), c)


def test_fusing_shows_for_bfloat16_and_for_other_roundings() -> None:
    fma, mul, add = (NAMED[n] for n in ("fma.rn.f32", "mul.f32", "add.f32"))
    # One and a half of the smallest subnormal, plus that one: a tie either way.
    x, y, z = (np.array([v], np.uint64) for v in (0x1A400000, 0x1A800000, 0x00000001))
    assert (fma(x, y, z) == 2).all()
    assert (add(mul(x, y), z) == 3).all()
    table = Table()
    a, b, c = ids(table, 0, 1, 2)
    wide = [table.make("cvt.f32.bf16", 4, table.extract(v, 0, 2)) for v in (a, b)]
    parted = table.make("add.f32", 4, table.make("mul.f32", 4, *wide), c)
    assert table.make("fma.rn.f32", 4, *wide, c) != parted
    halves = [table.make("cvt.f32.f16", 4, table.extract(v, 0, 2)) for v in (a, b)]
    parted = table.make("add.f32", 4, table.make("mul.f32", 4, *halves), c)
    assert table.make("fma.rz.f32", 4, *halves, c) != parted
    assert table.make("fma.rn.f32", 4, halves[0], a, c) != table.make(
        "add.f32", 4, table.make("mul.f32", 4, halves[0], a), c
    )


def test_a_fused_multiply_add_rounds_once() -> None:
    """Against exact fractions."""
    from fractions import Fraction

    random = np.random.default_rng(5)
    patterns = [random.integers(0, 1 << 32, 3000, dtype=np.uint64) for _ in range(2)]
    x, y = patterns
    exponent = np.uint64(0x7F800000)
    near = (NAMED["mul.f32"](x, y) + random.integers(0, 3, len(x)).astype(np.uint64)) ^ np.uint64(0x80000000)
    z = np.where(random.random(len(x)) < 0.5, near, random.integers(0, 1 << 32, len(x), dtype=np.uint64))
    finite = ((x & exponent) != exponent) & ((y & exponent) != exponent) & ((z & exponent) != exponent)
    got = NAMED["fma.rn.f32"](x, y, z)
    checked = 0
    for i in np.flatnonzero(finite):
        a, b, c = (Fraction(float(np.uint32(v[i]).view(np.float32))) for v in (x, y, z))
        if a * b + c != 0:
            checked += 1
            assert int(got[i]) == encode_number(a * b + c, DType.FLOAT32)
    assert checked > 2000


# Bytes.


def test_bytes_of_bytes_are_the_bytes() -> None:
    """Random cuts and joins of 8-byte values name the bytes that they hold, and no others."""
    random = np.random.default_rng(7)
    table = Table()
    data = random.integers(0, 256, 64, dtype=np.uint8)
    pool: list[tuple[Ids, bytes]] = []
    for o in range(0, 64, 8):
        pool.append((table.leaves(np.zeros(1, np.int64), np.array([o], np.int64), 8), data[o : o + 8].tobytes()))
    pool.append((constant(table, 0x1122334455667788, 8), (0x1122334455667788).to_bytes(8, "little")))
    for _ in range(400):
        node, held = pool[random.integers(len(pool))]
        width = int(random.choice([w for w in (1, 2, 4, 8) if w <= len(held)]))
        at = int(random.integers(0, len(held) - width + 1))
        pool.append((table.extract(node, at, width), held[at : at + width]))
        same = [p for p in pool if len(p[1]) == width and width <= 4]
        if same:
            (low, first), (high, second) = (same[i] for i in random.integers(len(same), size=2))
            pool.append((table.concat([low, high]), first + second))
    for node, held in pool:
        assert value_of(table, int(node[0]), data) == held


def value_of(table: Table, node: int, data: np.ndarray) -> bytes:
    here = table.node(node)
    match here.name:
        case "constant":
            return (here.attributes[0] & (2 ** (8 * here.width) - 1)).to_bytes(here.width, "little")
        case "load":
            return data[here.attributes[1] : here.attributes[1] + here.width].tobytes()
        case "concat":
            return b"".join(value_of(table, child, data) for child in here.children)
        case "extract":
            inner = value_of(table, here.children[0], data)
            return inner[here.attributes[0] : here.attributes[0] + here.width]
    raise AssertionError(here)


def test_a_word_is_one_node_however_it_is_put_together() -> None:
    table = Table()
    (word,) = ids(table, 3)
    halves = [table.extract(word, k, 2) for k in (0, 2)]
    singles = [table.extract(word, k, 1) for k in range(4)]
    assert table.concat(halves) == word == table.concat(singles)
    assert table.concat(halves[::-1]) != word
    total = table.make("add.f32", 4, word, word)
    assert table.concat([table.extract(total, k, 1) for k in range(4)]) == total
    assert table.node(int(table.extract(total, 1, 1)[0])).name == "extract"


@pytest.mark.parametrize(
    ("name", "mode", "operand", "expected"),
    [
        ("and.b32", 1, 0xFFFF0000, "high"),
        ("and.b32", 1, 0x0000FFFF, "low"),
        ("shl.b32", 2, 16, "raised"),
        ("shr.u32", 3, 16, "lowered"),
    ],
)
def test_masks_and_shifts_by_bytes_are_moves(name: str, mode: int, operand: int, expected: str) -> None:
    table = Table()
    (word,) = ids(table, 0)
    zero, low, high = constant(table, 0, 2), table.extract(word, 0, 2), table.extract(word, 2, 2)
    wanted = {"high": [zero, high], "low": [low, zero], "raised": [zero, low], "lowered": [high, zero]}[expected]
    assert table.bitwise(name, mode, 4, word, constant(table, operand)) == table.concat(wanted)


def test_other_masks_and_shifts_are_functions() -> None:
    table = Table()
    (word,) = ids(table, 0)
    for name, mode, operand in (("and.b32", 1, 0x7FFFFFFF), ("shl.b32", 2, 3), ("or.b32", 0, 0x80000000)):
        made = table.bitwise(name, mode, 4, word, constant(table, operand))
        assert table.node(int(made[0])).name == name


def test_digests_are_the_same_in_two_tables_and_differ_among_nodes() -> None:
    def digests(first: int) -> dict[str, str]:
        table = Table()
        for o in range(first):
            ids(table, 100 + o)
        a, b, c = ids(table, 0, 1, 2)
        made = {
            "leaf": a,
            "sum": table.make("add.f32", 4, a, b),
            "deeper": table.make("add.f32", 4, table.make("add.f32", 4, a, b), c),
            "other tree": table.make("add.f32", 4, a, table.make("add.f32", 4, b, c)),
            "twice": table.make("add.f32", 4, a, a),
            "product": table.make("mul.f32", 4, a, b),
            "narrow": table.make("add.f32", 2, a, b),
        }
        return {name: table.node(int(node[0])).digest for name, node in made.items()}

    one, other = digests(0), digests(50)
    assert one == other
    assert len(set(one.values())) == len(one)


def as_bits(values: np.ndarray) -> Bits:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)


def test_table_grows_without_forgetting() -> None:
    table = Table()
    many = table.leaves(np.zeros(1, np.int64), np.arange(0, 400_000, 4, dtype=np.int64), 4)
    assert len(np.unique(many)) == 100_000
    again = table.leaves(np.zeros(1, np.int64), np.arange(0, 400_000, 4, dtype=np.int64), 4)
    assert (many == again).all()
    assert len(table) == 100_001


@pytest.mark.parametrize("name", ["add.f32", "sub.f32", "mul.f32"])
def test_constants_are_worked_out_as_the_card_would(name: str) -> None:
    random = np.random.default_rng(5)
    edges = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC12345, 1, 0x00800000, 0x7F7FFFFF, 0x3F800000], np.uint64)
    a = np.concatenate([np.repeat(edges, len(edges)), random.integers(0, 2**32, 20000, dtype=np.uint64)])
    b = np.concatenate([np.tile(edges, len(edges)), random.integers(0, 2**32, 20000, dtype=np.uint64)])
    table = Table()
    bits, kind = table.patterns(table.make(name, 4, table.constants(a, 4), table.constants(b, 4)))
    assert (kind == 1).all()
    assert (bits == NAMED[name](a, b)).all()
