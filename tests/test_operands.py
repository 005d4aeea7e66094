"""Operands: one program, two libraries, the same bytes for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gemmdesc import nvrtc
from gemmdesc.bits import to_float32
from gemmdesc.dtypes import DType
from gemmdesc.errors import InvalidInputError
from gemmdesc.operands import (
    ConstantOperand,
    DenseOperand,
    Entries,
    Family,
    HashOperand,
    MaskedOperand,
    Operand,
    PatternOperand,
    Patterns,
    RetypedOperand,
    SparseOperand,
    torch_integer,
)
from gemmdesc.operands import hashed as hashed_module
from gemmdesc.operands.families import WIDE_EXPONENTS, extent, hashed_bits, special_patterns
from gemmdesc.operands.lanes import absorb, finalise, finalise_word

ROLES = ("a", "b")
#: The first four words of row 3 at k = 100, seed 7, draw 11, role a.
GOLDEN = {
    (Family.NORMAL, DType.FLOAT16): ("354a 2e86 b4da 33ee", "39fc b7b4 badb 3be2"),
    (Family.WIDE, DType.FLOAT16): ("1d4a 2a86 bcda 3bee", "19fc cbb4 aadb 2fe2"),
    (Family.RAMP, DType.FLOAT16): ("194a 9a86 18da 9bee", "39fc 37b4 3adb 3be2"),
    (Family.CANCELLING, DType.FLOAT16): ("1d4a cba6 21d2 a07e", "adf0 adf0 adf3 adf2"),
    (Family.NEGATIVE_ZERO, DType.FLOAT16): ("8000 8000 8000 8000", "39fc 37b4 3adb 3be2"),
    (Family.SPECIALS, DType.FLOAT16): ("354a 2e86 b4da 33ee", "7c00 b7b4 badb 3be2"),
    (Family.SUBNORMAL, DType.FLOAT16): ("054a 0a86 80da 03ee", "39fc b7b4 badb 3be2"),
    (Family.WIDE, DType.BFLOAT16): ("3aca 3d86 c25a 41ee", "3a7c c5b4 bddb 3ee2"),
    (Family.WIDE, DType.FLOAT32): ("3a93ed4a 3d8a9686 c267f0da 41a9d3ee", "3a750dfc c5e9fbb4 bdcd4edb 3eb357e2"),
    (Family.WIDE, DType.FLOAT64): (
        "3f59059404bce608 3fbbfa11cebb1b6c c0471c9b8f1e13f6 4030b1bded259973",
        "3f44a055bc7ec1c1 c0b6c92967c04821 bfb81d1e29d17b20 3fda78d8d910e7b3",
    ),
    (Family.WIDE, DType.FLOAT8_E4M3FN): ("0a 26 c2 3e", "0c d4 a3 2a"),
    (Family.WIDE, DType.FLOAT8_E5M2): ("1e 2a be 3a", "18 c8 ab 2e"),
}


def _hashed(family: Family, dtype: DType = DType.FLOAT16, role: str = "a", draw: int = 0) -> HashOperand:
    return HashOperand(dtype=dtype, family=family, seed=5, draw=draw, role=role)  # type: ignore[arg-type]


def _explicit(dtype: DType) -> list[Operand]:
    rng = np.random.default_rng(0)
    top = 1 << (dtype.format.storage_bits - 1)
    entries = Entries(outer=np.array([8, 0, 3, 0]), k=np.array([1, 4, 2, 0]), bits=np.array([1, 2, 3, top - 1]))
    dense = rng.integers(0, 256, size=(9, 5 * dtype.itemsize), dtype=np.uint8).view(f"u{dtype.itemsize}")
    patterns = Patterns(k=np.array([[0, 4], [1, 1], [2, 3]]), bits=np.array([[1, 2], [3, 3], [4, 5]]))
    return [
        ConstantOperand(dtype=dtype, value_bits=top),
        SparseOperand(dtype=dtype, background_bits=top + 3, entries=entries),
        DenseOperand(dtype=dtype, array=dense),
        PatternOperand(background=_hashed(Family.WIDE, dtype), patterns=patterns, seed=1, draw=2),
    ]


def _torch_bytes(operand: Operand, outer: int, k: int) -> np.ndarray:
    tensor = operand.torch_bits(outer, k, "cpu")
    assert tensor.dtype == torch_integer(operand.dtype)
    assert tensor.shape == (outer, k)
    raw: np.ndarray = tensor.numpy().view(f"u{operand.dtype.itemsize}")
    return raw


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
@pytest.mark.parametrize("family", Family, ids=lambda f: f.value)
def test_torch_makes_numpys_bytes(family: Family, dtype: DType) -> None:
    for role in ROLES:
        operand = _hashed(family, dtype, role)
        for outer, k in ((1, 1), (7, 130), (0, 4), (4, 0)):
            np.testing.assert_array_equal(_torch_bytes(operand, outer, k), operand.bits(outer, k))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_the_card_makes_numpys_bytes(dtype: DType) -> None:
    operands: list[Operand] = [_hashed(family, dtype, role) for family in Family for role in ROLES]
    for operand in operands:
        raw = operand.torch_bits(1000, 1003, "cuda").cpu().numpy().view(f"u{dtype.itemsize}")
        np.testing.assert_array_equal(raw, operand.bits(1000, 1003))
    for operand in _explicit(dtype):
        raw = operand.torch_bits(9, 5, "cuda").cpu().numpy().view(f"u{dtype.itemsize}")
        np.testing.assert_array_equal(raw, operand.bits(9, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
@pytest.mark.parametrize("family", Family, ids=lambda f: f.value)
def test_the_kernel_makes_numpys_bytes_in_every_shape(family: Family, dtype: DType) -> None:
    assert nvrtc.available()
    for role in ROLES:
        operand = _hashed(family, dtype, role, draw=3)
        for outer, k in ((1, 1), (3, 5), (33, 1000), (257, 4099), (70000, 3), (2, 100003), (0, 4), (4, 0)):
            tensor = operand.torch_bits(outer, k, "cuda")
            assert tensor.dtype == torch_integer(dtype)
            raw = tensor.cpu().numpy().view(f"u{dtype.itemsize}")
            np.testing.assert_array_equal(raw, operand.bits(outer, k))


@pytest.mark.gpu
@pytest.mark.parametrize("family", Family, ids=lambda f: f.value)
def test_the_card_needs_no_kernel(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    for dtype in DType:
        raw = _hashed(family, dtype).torch_bits(33, 1003, "cuda").cpu().numpy().view(f"u{dtype.itemsize}")
        np.testing.assert_array_equal(raw, _hashed(family, dtype).bits(33, 1003))


@pytest.mark.gpu
@pytest.mark.parametrize(("outer", "k"), [((1 << 20) + 3, 2051), (3, (1 << 30) + 7), ((1 << 31) + 5, 1)])
@pytest.mark.parametrize("family", [Family.RAMP, Family.CANCELLING, Family.SPECIALS], ids=lambda f: f.value)
def test_the_card_counts_beyond_two_to_the_31(family: Family, outer: int, k: int, rng: np.random.Generator) -> None:
    import torch

    operand = _hashed(family, DType.FLOAT8_E5M2)
    out = operand.torch_bits(outer, k, "cuda")
    flat = np.concatenate([rng.integers(0, outer * k, 100_000), (1 << 31) + np.arange(-300, 5), [0, outer * k - 1]])
    base, (length, levels) = absorb(5, 0, ord("a")), extent(k)
    expected = hashed_bits(
        family, operand.dtype, "a", base=base, i=flat // k, kk=flat % k, length=length, levels=levels
    )
    got = out.view(-1)[torch.from_numpy(flat).cuda()].cpu().numpy().view(np.uint8)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.gpu
def test_the_card_places_entries_beyond_two_to_the_31() -> None:
    outer, k = (1 << 20) + 3, 2051
    entries = Entries(outer=np.array([outer - 1, 0, 1 << 20]), k=np.array([k - 1, 7, 2]), bits=np.array([1, 2, 3]))
    out = SparseOperand(dtype=DType.FLOAT8_E5M2, background_bits=0, entries=entries).torch_bits(outer, k, "cuda")
    assert int((out != 0).sum()) == 3
    assert [int(out[i, kk]) for i, kk in ((outer - 1, k - 1), (0, 7), (1 << 20, 2))] == [1, 2, 3]


@pytest.mark.gpu
def test_the_card_works_on_the_current_stream_of_any_thread() -> None:
    import torch

    operands = [_hashed(Family.WIDE), *_explicit(DType.FLOAT16)]
    side, results = torch.cuda.Stream(), []

    def make() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            results.extend(operand.torch_bits(9, 5, "cuda") for operand in operands)
        side.synchronize()

    make()
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    for operand, tensor in zip(operands * 2, results, strict=True):
        np.testing.assert_array_equal(tensor.cpu().numpy().view(np.uint16), operand.bits(9, 5))


@pytest.mark.gpu
def test_a_cuda_graph_holds_the_kernel_alone() -> None:
    import torch

    operand = _hashed(Family.CANCELLING)
    operand.torch_bits(33, 65, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operand.torch_bits(33, 65, "cuda")
    out.zero_()
    graph.replay()
    np.testing.assert_array_equal(out.cpu().numpy().view(np.uint16), operand.bits(33, 65))


@pytest.mark.gpu
def test_every_card_makes_the_same_bytes() -> None:
    import torch

    for index in range(torch.cuda.device_count()):
        for operand in (_hashed(Family.WIDE), *_explicit(DType.FLOAT16)):
            tensor = operand.torch_bits(9, 5, f"cuda:{index}")
            assert tensor.device.index == index
            np.testing.assert_array_equal(tensor.cpu().numpy().view(np.uint16), operand.bits(9, 5))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E5M2], ids=lambda d: d.value)
def test_explicit_operands_agree_and_take_rows(dtype: DType) -> None:
    rows = np.array([8, 0, 0, 3])
    for operand in _explicit(dtype):
        whole = operand.bits(9, 5)
        np.testing.assert_array_equal(_torch_bytes(operand, 9, 5), whole)
        np.testing.assert_array_equal(operand.bits(9, 5, rows), whole[rows])


@pytest.mark.parametrize("family", Family, ids=lambda f: f.value)
def test_rows_are_made_alone_and_outer_does_not_matter(family: Family) -> None:
    operand = _hashed(family)
    whole = operand.bits(40, 65)
    rows = np.array([39, 0, 17, 17])
    np.testing.assert_array_equal(operand.bits(40, 65, rows), whole[rows])
    np.testing.assert_array_equal(operand.bits(1000, 65, np.arange(40)), whole)


def test_tiling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    operand = _hashed(Family.CANCELLING)
    whole = operand.bits(13, 57)
    monkeypatch.setattr(hashed_module, "NUMPY_TILE", 20)
    monkeypatch.setattr(hashed_module, "TORCH_TILE", {"cpu": 130})
    np.testing.assert_array_equal(operand.bits(13, 57), whole)
    np.testing.assert_array_equal(_torch_bytes(operand, 13, 57), whole)


@pytest.mark.parametrize("family", [f for f in Family if f is not Family.NEGATIVE_ZERO], ids=lambda f: f.value)
def test_seed_draw_role_row_and_k_index_all_matter(family: Family) -> None:
    base = _hashed(family).bits(8, 256)
    others = [
        _hashed(family, draw=1).bits(8, 256),
        _hashed(family, role="b").bits(8, 256),
        HashOperand(dtype=DType.FLOAT16, family=family, seed=6, draw=0, role="a").bits(8, 256),
        base[::-1],
        np.roll(base, 1, axis=1),
    ]
    for other in others:
        assert (other != base).mean() > 0.9


@pytest.mark.parametrize("dtype", WIDE_EXPONENTS, ids=lambda d: d.value)
def test_wide_has_its_stated_exponents_all_about_as_often(dtype: DType) -> None:
    low, high = WIDE_EXPONENTS[dtype]
    form = dtype.format
    raw = _hashed(Family.WIDE, dtype).bits(64, 1024).astype(np.uint64)
    shift = 23 if dtype is DType.TFLOAT32 else form.fraction_bits
    mask = (1 << (form.storage_bits - 1 - shift)) - 1
    exponent = ((raw >> np.uint64(shift)).astype(np.int64) & mask) + form.min_exponent - 1
    values, counts = np.unique(exponent, return_counts=True)
    assert values.tolist() == list(range(low, high + 1))
    assert counts.min() > 0.8 * raw.size / len(values)
    assert 0.48 < (raw >> np.uint64(form.storage_bits - 1)).mean() < 0.52
    ones = [((raw >> np.uint64(b)) & np.uint64(1)).mean() for b in range(shift - form.fraction_bits, shift)]
    assert min(ones) > 0.47
    assert max(ones) < 0.53


def test_normal_looks_normal() -> None:
    x = to_float32(_hashed(Family.NORMAL, DType.BFLOAT16).bits(64, 1024), DType.BFLOAT16).astype(np.float64)
    assert abs(x.mean()) < 0.03
    assert 0.85 < x.std() < 1.25
    assert np.abs(x).max() < 4


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.value)
@pytest.mark.parametrize("family", [Family.NORMAL, Family.WIDE, Family.RAMP, Family.CANCELLING], ids=lambda f: f.value)
def test_the_order_of_the_sum_shows(family: Family, dtype: DType) -> None:
    a = to_float32(_hashed(family, dtype, "a").bits(64, 512), dtype)
    b = to_float32(_hashed(family, dtype, "b").bits(64, 512), dtype)
    products = a * b
    ascending = np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
    descending = np.cumsum(products[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    halves = [np.cumsum(h, axis=1, dtype=np.float32)[:, -1] for h in (products[:, :256], products[:, 256:])]
    assert np.isfinite(ascending).all()
    assert (ascending != descending).mean() > 0.5
    assert (ascending != halves[0] + halves[1]).mean() > 0.4


def test_cancelling_pairs_cancel() -> None:
    a = to_float32(_hashed(Family.CANCELLING, role="a").bits(64, 256), DType.FLOAT16).astype(np.float64)
    b = to_float32(_hashed(Family.CANCELLING, role="b").bits(64, 256), DType.FLOAT16).astype(np.float64)
    products = a @ b.T
    assert np.median(np.abs(products) / (np.abs(a) @ np.abs(b).T)) < 1e-3


def test_negative_zero_products() -> None:
    a, b = (to_float32(_hashed(Family.NEGATIVE_ZERO, role=r).bits(4, 50), DType.FLOAT16) for r in ROLES)
    assert (b > 0).all()
    assert np.signbit(a * b).all()
    assert not (a * b).any()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN], ids=lambda d: d.value)
def test_specials_hold_every_kind_and_leave_half_of_the_rows_finite(dtype: DType) -> None:
    raw = _hashed(Family.SPECIALS, dtype).bits(256, 512).astype(np.int64)
    top = 1 << (dtype.format.storage_bits - 1)
    magnitude = raw & (top - 1)
    nan, infinity, largest = special_patterns(dtype)
    for pattern in {nan, infinity, largest, 0}:
        assert {0, top} == set((raw & top)[magnitude == pattern].tolist()), pattern
    assert ((magnitude > 0) & (magnitude < 1 << dtype.format.fraction_bits)).any()
    special = (magnitude >= min(infinity, largest)).any(axis=1)
    assert 0.3 < special.mean() < 0.7


def test_subnormals_are_half_of_their_family() -> None:
    raw = _hashed(Family.SUBNORMAL).bits(64, 512)
    assert 0.48 < ((raw & 0x7C00) == 0).mean() < 0.52
    assert ((raw & 0x7C00) >> 10).max() == 2


def test_indices_beyond_two_to_the_31() -> None:
    operand = _hashed(Family.WIDE)
    k = 2049
    far, low = 5 * 2**32 + 7, 7
    rows = operand.bits(far + 1, k, np.array([far, low]))
    assert (rows[0] != rows[1]).mean() > 0.99
    np.testing.assert_array_equal(rows[0], operand.bits(far + 9, k, np.array([far]))[0])
    assert far * k > 2**31


@pytest.mark.parametrize(("family", "dtype"), GOLDEN, ids=lambda x: x.value)
def test_bytes_never_change(family: Family, dtype: DType) -> None:
    for role, words in zip(ROLES, GOLDEN[family, dtype], strict=True):
        operand = HashOperand(dtype=dtype, family=family, seed=7, draw=11, role=role)  # type: ignore[arg-type]
        row = operand.bits(4, 100, np.array([3]))[0, :4]
        assert " ".join(f"{int(w):0{2 * dtype.itemsize}x}" for w in row) == words


def test_the_finaliser_is_splitmix64s() -> None:
    state = 0x9E3779B97F4A7C15  # the first state of splitmix64 seeded with 0; its output is published
    assert finalise_word(state) & (2**64 - 1) == 0xE220A8397B1DCDAF
    lanes = np.array([state], dtype=np.uint64).view(np.int64)
    assert int(finalise(lanes)[0]) == finalise_word(state)
    assert absorb(1, 2) != absorb(2, 1) != absorb(2, 1, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashOperand(dtype=DType.FLOAT16, family=Family.WIDE, seed=-1, draw=0, role="a"), "seed "),
        (lambda: HashOperand(dtype=DType.FLOAT16, family=Family.WIDE, seed=0, draw=2**63, role="a"), "draw "),
        (lambda: HashOperand(dtype=DType.FLOAT16, family=Family.WIDE, seed=0, draw=0, role="c"), "role "),  # type: ignore[arg-type]
        (lambda: ConstantOperand(dtype=DType.FLOAT16, value_bits=65536), "value_bits "),
        (lambda: Entries(outer=np.array([1]), k=np.array([1, 2]), bits=np.array([1])), "outer, k and bits "),
        (lambda: Entries(outer=np.array([1, 1]), k=np.array([2, 2]), bits=np.array([1, 2])), "outer "),
        (lambda: Entries(outer=np.array([1]), k=np.array([-2]), bits=np.array([1])), "outer "),
        (lambda: DenseOperand(dtype=DType.FLOAT16, array=np.zeros((2, 2), dtype=np.uint8)), "array "),
        (lambda: _explicit(DType.FLOAT16)[1].bits(8, 5), "outer and k "),
        (lambda: _explicit(DType.FLOAT16)[2].bits(9, 4), "outer and k "),
        (lambda: _explicit(DType.FLOAT16)[3].bits(9, 4), "k "),
        (lambda: _hashed(Family.WIDE).bits(-1, 4), "outer "),
        (lambda: _hashed(Family.WIDE).bits(4, 4, np.array([4])), "rows "),
        (lambda: Patterns(k=np.zeros((0, 2), dtype=np.int64), bits=np.zeros((0, 2), dtype=np.int64)), "k "),
    ],
)
def test_misuse_names_the_argument(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{message}.*\(got .*\)$"):
        make()  # type: ignore[operator]


def test_explicit_arrays_are_read_only_copies() -> None:
    source = np.zeros((2, 2), dtype=np.uint16)
    operand = DenseOperand(dtype=DType.FLOAT16, array=source)
    source[:] = 1
    assert not operand.bits(2, 2).any()
    with pytest.raises(ValueError, match="read-only"):
        operand.array[0, 0] = 1


@pytest.mark.parametrize("family", [Family.NORMAL, Family.SPECIALS])
def test_the_same_bytes_under_another_format_or_a_mask(family: Family) -> None:
    source = HashOperand(dtype=DType.FLOAT32, family=family, seed=3, draw=1, role="a")
    masked = MaskedOperand(source=source, mask=0xFFFFF000)
    renamed = RetypedOperand(source=source, dtype=DType.TFLOAT32)
    whole = source.bits(5, 40)
    np.testing.assert_array_equal(masked.bits(5, 40), whole & np.uint32(0xFFFFF000))
    np.testing.assert_array_equal(renamed.bits(5, 40, np.array([3, 1])), whole[[3, 1]])
    assert (masked.dtype, renamed.dtype) == (DType.FLOAT32, DType.TFLOAT32)
    for made in (masked, renamed):
        np.testing.assert_array_equal(made.torch_bits(5, 40, "cpu").numpy().view(np.uint32), made.bits(5, 40))
    with pytest.raises(InvalidInputError, match=r"^dtype must be as wide"):
        RetypedOperand(source=source, dtype=DType.FLOAT16)
    with pytest.raises(InvalidInputError, match=r"^mask must be a bit pattern"):
        MaskedOperand(source=source, mask=1 << 32)


def test_chosen_elements_are_those_of_the_chosen_rows() -> None:
    operand = HashOperand(dtype=DType.BFLOAT16, family=Family.WIDE, seed=4, draw=2, role="b")
    rows, columns = np.array([6, 0, 3]), np.array([10, 2, 2, 0])
    assert np.array_equal(operand.elements(7, 11, rows, columns), operand.bits(7, 11, rows)[:, columns])
    with pytest.raises(InvalidInputError):
        operand.elements(7, 11, rows, np.array([11]))
