"""Our products as operators of torch's: shapes for tracing, gradients with eager's products, whole in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gemmdesc
from gemmdesc.dropin import register_choices, register_operators
from gemmdesc.dropin.intercept import TorchCall, intercepted
from gemmdesc.errors import InvalidInputError
from tests.dropin_samples import source

torch = pytest.importorskip("torch")
HALF, BF16, FLOAT, F8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
NAME = "simulated"


@pytest.fixture(scope="module", autouse=True)
def names() -> None:
    register_operators()
    register_choices(NAME, replay=source())
    register_choices(f"{NAME} or library", replay=source(), on_decline="library")


def whole(*shape: int) -> Any:
    return torch.randint(1, 3, shape).to(HALF) * (2 * torch.randint(0, 2, shape) - 1).to(HALF)


#: By operator: operands, and what follows them.
OPERATORS: dict[str, tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = {
    "mm": (lambda: (whole(4, 6), whole(6, 5)), (NAME,)),
    "bmm": (lambda: (whole(3, 4, 6), whole(3, 6, 5)), (NAME,)),
    "mv": (lambda: (whole(4, 6), whole(6)), (NAME,)),
    "addmm": (lambda: (whole(5), whole(4, 6), whole(6, 5)), (1.0, 1.0, NAME)),
    "baddbmm": (lambda: (whole(4, 5), whole(1, 4, 6), whole(1, 6, 5)), (0.5, 1.0, NAME)),
}
#: Those that torch has no gradient of either.
BARE: dict[str, tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = {
    "addmm_activation": (lambda: (whole(5), whole(4, 6), whole(6, 5)), (1.0, 1.0, False, NAME)),
    "mm_dtype": (lambda: (whole(4, 6), whole(6, 5)), (torch.float32, NAME)),
    "scaled_mm": (
        lambda: (whole(16, 32).to(F8), whole(16, 32).to(F8).T, torch.tensor(2.0), torch.tensor(0.5)),
        (None, torch.bfloat16, False, NAME),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_keep_torchs_rules(name: str) -> None:
    operands, rest = OPERATORS[name]
    given = [t.requires_grad_() for t in operands()]
    results = torch.library.opcheck(getattr(torch.ops.gemmdesc, name).default, (*given, *rest))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", BARE)
def test_operators_without_gradients_keep_torchs_rules(name: str) -> None:
    operands, rest = BARE[name]
    # The check of a schema compares values by a tolerance, which torch cannot do with 8-bit ones.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    chosen = checks if name == "scaled_mm" else ("test_schema", *checks)
    func = getattr(torch.ops.gemmdesc, name).default
    results = torch.library.opcheck(func, (*operands(), *rest), test_utils=chosen)
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == len(chosen)


def test_a_gradient_that_torch_has_not_is_refused_by_backward() -> None:
    operands, rest = BARE["addmm_activation"]
    result = torch.ops.gemmdesc.addmm_activation(*(t.requires_grad_() for t in operands()), *rest)
    with pytest.raises(RuntimeError):
        result.sum().backward()


def products(call: Callable[[], Any]) -> list[Any]:
    """What ``call`` multiplies: each product's operands by shape and stride, and whatever it returns."""
    seen: list[Any] = []

    def handle(inner: TorchCall) -> Any:
        given = [t for t in inner.args if isinstance(t, torch.Tensor)]
        seen.append((inner.name.rstrip("_"), [(tuple(t.shape), t.stride()) for t in given]))
        return inner.run()

    with intercepted(handle):
        result = [None if t is None else t.tolist() for t in call()]
    # Which of two gradients comes first is no matter.
    return [sorted(seen), result]


def gradients(call: Callable[..., Any], operands: tuple[Any, ...], needs: tuple[bool, ...]) -> list[Any]:
    leaves = [t.detach().requires_grad_(n) for t, n in zip(operands, needs, strict=True)]
    result = call(*leaves)
    result.backward(torch.ones_like(result))
    return [t.grad for t in leaves]


@pytest.mark.parametrize("columns", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", OPERATORS)
def test_backward_makes_eagers_products(name: str, columns: tuple[bool, bool]) -> None:
    """Declined products run on torch's library and are seen there: every one of ours would be eager's."""
    operands, rest = OPERATORS[name]
    *addend, a, b = operands()
    a, b = (t.mT.contiguous().mT if turned and t.dim() > 1 else t for t, turned in zip((a, b), columns, strict=True))
    scalars = {"beta": rest[0], "alpha": 2.0} if len(rest) > 1 else {}
    values = [rest[0], 2.0] if len(rest) > 1 else []

    def ours(*given: Any) -> Any:
        return getattr(torch.ops.gemmdesc, name)(*given, *values, "library on a host")

    def theirs(*given: Any) -> Any:
        return getattr(torch, name)(*given, **scalars)

    class Nothing:
        settings, release = source().settings, source().release

        def look_up(self, problem: Any) -> Any:
            return gemmdesc.Declined(code="no_rule", reason="nothing is known here")

    register_choices("library on a host", replay=Nothing(), on_decline="library")
    for needs in ((True, True), (True, False), (False, True)):
        wanted = (True,) * len(addend) + needs
        expected = products(lambda w=wanted: gradients(theirs, (*addend, a, b), w))
        assert products(lambda w=wanted: gradients(ours, (*addend, a, b), w)) == expected


def test_a_function_is_traced_whole_and_plans_at_run_time() -> None:
    weight, bias, second = whole(7, 6).requires_grad_(), whole(7).requires_grad_(), whole(7, 2)

    def model(x: Any) -> Any:
        hidden = torch.relu(gemmdesc.linear(x, weight, bias, named=NAME))
        return gemmdesc.matmul(hidden, second, named=NAME)

    counted: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        counted.append([str(n.target) for n in graph.graph.nodes if "gemmdesc" in str(n.target)])
        return graph

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for batch in (8, 9, 11):
        x = whole(batch, 4, 6)
        assert torch.equal(compiled(x), model(x))
    (calls,) = counted
    assert calls == ["gemmdesc.addmm", "gemmdesc.mm"]


def test_a_compiled_step_has_eagers_gradients() -> None:
    weight, bias, x = whole(7, 6).requires_grad_(), whole(7).requires_grad_(), whole(2, 4, 6).requires_grad_()

    def step(function: Callable[..., Any]) -> list[Any]:
        for t in (weight, bias, x):
            t.grad = None
        function(x).sum().backward()
        return [t.grad.clone() for t in (weight, bias, x)]

    ours = torch.compile(lambda x: gemmdesc.linear(x, weight, bias, named=NAME), backend="aot_eager", fullgraph=True)
    want = step(lambda x: torch.nn.functional.linear(x, weight, bias))
    assert all(torch.equal(a, b) for a, b in zip(step(ours), want, strict=True))


@pytest.mark.slow
def test_inductor_leaves_the_operators_whole() -> None:
    weight, bias = whole(7, 6), whole(7)
    ours = torch.compile(lambda x: torch.relu(gemmdesc.linear(x, weight, bias, named=NAME)) + 1, fullgraph=True)
    x = whole(2, 4, 6)
    assert torch.equal(ours(x), torch.relu(torch.nn.functional.linear(x, weight, bias)) + 1)


def test_what_a_graph_cannot_hold_is_refused() -> None:
    a, b = whole(4, 6), whole(6, 5)
    for given, words in (
        ({"replay": source()}, "choices must have a name in a graph"),
        ({"named": NAME, "out": whole(4, 5)}, "out must be None in a graph"),
    ):
        compiled = torch.compile(lambda a, b, g=given: gemmdesc.mm(a, b, **g), backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=words):
            compiled(a, b)
    batches = torch.compile(
        lambda a, b: gemmdesc.matmul(a, b, out_dtype=FLOAT, named=NAME), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="out_dtype must be None unless a and b are matrices"):
        batches(whole(2, 4, 6), b)
    layer = torch.compile(lambda x, w, c: gemmdesc.linear(x, w, c, named=NAME), backend="eager", fullgraph=True)
    for bias in (whole(4, 5), whole(10)[::2]):
        with pytest.raises(Exception, match="bias must be dense and have one axis"):
            layer(whole(2, 4, 6), whole(5, 6), bias)


def cast(call: Callable[..., Any]) -> Callable[..., Any]:
    def under(*operands: Any) -> Any:
        with torch.autocast("cpu", BF16):
            return call(*operands)

    return under


LINEAR = torch.nn.functional.linear
#: What a user compiles, what torch's own does, and the operands for a size.
COMPILED: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "mm": (lambda a, b: gemmdesc.mm(a, b, named=NAME), torch.mm, lambda n: (whole(n, 6), whole(6, 5))),
    "matmul folded": (
        lambda a, b: gemmdesc.matmul(a, b, named=NAME), torch.matmul, lambda n: (whole(n, 3, 6), whole(6, 5))
    ),
    "matmul broadcast": (
        lambda a, b: gemmdesc.matmul(a, b, named=NAME), torch.matmul, lambda n: (whole(2, 1, n, 6), whole(3, 6, 5))
    ),
    "matmul of a vector": (
        lambda a, b: gemmdesc.matmul(a, b, named=NAME), torch.matmul, lambda n: (whole(n, 6), whole(6))
    ),
    "float32 of float16": (
        lambda a, b: gemmdesc.matmul(a, b, out_dtype=FLOAT, named=NAME), lambda a, b: a.float() @ b.float(),
        lambda n: (whole(n, 6), whole(6, 5)),
    ),
    "linear": (
        lambda x, w, c: gemmdesc.linear(x, w, c, named=NAME), LINEAR, lambda n: (whole(n, 3, 6), whole(5, 6), whole(5))
    ),
    "linear of rows apart": (
        lambda x, w, c: gemmdesc.linear(x.transpose(0, 1), w, c, named=NAME),
        lambda x, w, c: LINEAR(x.transpose(0, 1), w, c), lambda n: (whole(n, 3, 6), whole(5, 6), whole(5)),
    ),
    "linear with a bias of two axes": (
        lambda x, w, c: gemmdesc.linear(x, w, c, named=NAME), LINEAR, lambda n: (whole(n, 6), whole(5, 6), whole(n, 5))
    ),
    "addmm of an expanded row": (
        lambda c, a, b: gemmdesc.addmm(c.expand(a.shape[0], 5), a, b, named=NAME),
        lambda c, a, b: torch.addmm(c.expand(a.shape[0], 5), a, b), lambda n: (whole(5), whole(n, 6), whole(6, 5)),
    ),
    "relu after addmm": (
        lambda c, a, b: gemmdesc.addmm_activation(c, a, b, named=NAME), torch._addmm_activation,
        lambda n: (whole(5), whole(n, 6), whole(6, 5)),
    ),
    "bmm": (lambda a, b: gemmdesc.bmm(a, b, named=NAME), torch.bmm, lambda n: (whole(n, 3, 6), whole(n, 6, 5))),
    "baddbmm": (
        lambda c, a, b: gemmdesc.baddbmm(c, a, b, beta=0, named=NAME), lambda c, a, b: torch.baddbmm(c, a, b, beta=0),
        lambda n: (whole(3, 5), whole(n, 3, 6), whole(n, 6, 5)),
    ),
    "scaled_mm": (
        lambda a, b, s: gemmdesc.scaled_mm(a, b.t(), s, s, out_dtype=BF16, named=NAME),
        lambda a, b, s: torch._scaled_mm(a, b.t(), s, s, out_dtype=BF16),
        lambda n: (whole(16 * n, 32).to(F8), whole(16, 32).to(F8), torch.tensor(2.0)),
    ),
    "autocast": (
        cast(lambda a, b: gemmdesc.mm(a, b, named=NAME)), cast(torch.mm),
        lambda n: (whole(n, 6).float(), whole(6, 5).float()),
    ),
    "autocast of two types": (
        cast(lambda x, w, c: gemmdesc.linear(x, w, c, named=NAME)), cast(LINEAR),
        lambda n: (whole(n, 6).float(), whole(5, 6).to(BF16), whole(5).float()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_every_function_compiles_whole_at_any_size(name: str) -> None:
    ours, theirs, operands = COMPILED[name]
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(ours, backend=backend, fullgraph=True, dynamic=True)
    for size in (4, 7, 9):
        given = operands(size)
        got, want = compiled(*given), theirs(*given)
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
        assert torch.equal(got, want)
    assert len(graphs) == 1


def test_names_of_choices() -> None:
    a, b = whole(4, 6), whole(6, 5)
    assert torch.equal(gemmdesc.matmul(a, b, named=NAME), torch.matmul(a, b))
    with pytest.raises(InvalidInputError, match="named must be a name given to register_choices"):
        gemmdesc.matmul(a, b, named="no such name")
    with pytest.raises(InvalidInputError, match="named must stand for all choices"):
        gemmdesc.mm(a, b, named=NAME, replay=source())
    for name in ("", "library"):
        with pytest.raises(InvalidInputError, match="name must not be one that stands for the default"):
            register_choices(name, replay=source())
    with pytest.raises(InvalidInputError, match="on a CPU beside replay="):
        torch.ops.gemmdesc.mm(a, b, "")


def test_empty_products_and_refusals_of_operators() -> None:
    assert torch.ops.gemmdesc.mm(whole(4, 0), whole(0, 5), NAME).tolist() == torch.zeros(4, 5).tolist()
    with pytest.raises(RuntimeError):
        torch.ops.gemmdesc.mm(whole(4, 6), whole(7, 5), NAME)


def test_vmap_is_refused_clearly() -> None:
    with pytest.raises(InvalidInputError, match=r"mm must not be mapped by vmap.* inside an override"):
        torch.vmap(lambda a, b: torch.ops.gemmdesc.mm(a, b, NAME), in_dims=(0, None))(whole(3, 4, 6), whole(6, 5))
