"""The questions asked of one handle: the heuristic's answer, its attributes, whether an answer runs at a problem."""

from __future__ import annotations

import ctypes

from gemmdesc.errors import InvalidInputError
from gemmdesc.library.bindings import (
    ALGO_CONFIG_ATTRIBUTES,
    COMPUTE_TYPES,
    NOT_SUPPORTED,
    SUCCESS,
    Functions,
    HeuristicResult,
    MatmulAlgo,
    data_type,
    status_name,
)
from gemmdesc.library.descriptors import Descriptors
from gemmdesc.problem import AlgoConfig, GemmProblem, Refused


class Questions:
    """Asks one handle's heuristic; keeps the result structs so that a query allocates next to nothing."""

    def __init__(self, functions: Functions, handle: int, descriptors: Descriptors) -> None:
        self._functions, self._handle, self._descriptors = functions, handle, descriptors
        self._heuristic = functions["cublasLtMatmulAlgoGetHeuristic"]
        self._get = functions["cublasLtMatmulAlgoConfigGetAttribute"]
        self._result, self._count = HeuristicResult(), ctypes.c_int()
        self._value, self._written = ctypes.c_uint64(), ctypes.c_size_t()
        self._at = [ctypes.addressof(x) for x in (self._result, self._count, self._value, self._written)]

    def first_answer(self, problem: GemmProblem) -> AlgoConfig | Refused:
        """The first answer of the heuristic asked for one."""
        d = self._descriptors.describe(problem)
        result, count, _, _ = self._at
        status = self._heuristic(self._handle, d.matmul, d.a, d.b, d.c, d.d, d.preference, 1, result, count)
        if status != SUCCESS:
            return Refused(status=status_name(status))
        if self._count.value < 1:
            return Refused(status=NOT_SUPPORTED)
        if self._result.state != SUCCESS:
            return Refused(status=status_name(self._result.state))
        values = self.read(result)
        opaque = ctypes.string_at(result, ctypes.sizeof(MatmulAlgo)).hex()
        return AlgoConfig(**values, opaque=opaque, workspace_bytes=int(self._result.workspace_size))

    def read(self, algo: int) -> dict[str, int]:
        """The attributes of the algo struct at address ``algo``, 0 where the release has no such attribute."""
        get, value, written = self._get, self._at[2], self._at[3]
        values = {}
        for name, number, size in ALGO_CONFIG_ATTRIBUTES:
            self._value.value = 0
            status = get(algo, number, value, size, written)
            values[name] = self._value.value if status == SUCCESS else 0
        return values

    def needed_workspace(self, problem: GemmProblem, algo: MatmulAlgo) -> int | Refused:
        """Bytes that ``algo`` needs at ``problem``, or why the library will not run it there."""
        d = self._descriptors.describe(problem)
        result, address = HeuristicResult(), ctypes.byref(algo)
        status = self._functions["cublasLtMatmulAlgoCheck"](
            self._handle, d.matmul, d.a, d.b, d.c, d.d, address, ctypes.byref(result)
        )
        if status != SUCCESS:
            return Refused(status=status_name(status))
        return int(result.workspace_size)

    def algo(self, problem: GemmProblem, answer: AlgoConfig) -> MatmulAlgo | Refused:
        """The struct of ``answer``: its recorded bytes, or one built from its attributes where none were recorded."""
        if answer.opaque:
            return MatmulAlgo.from_buffer_copy(opaque_bytes(answer))
        return self._rebuilt(problem, answer)

    def _rebuilt(self, problem: GemmProblem, answer: AlgoConfig) -> MatmulAlgo | Refused:
        algo, p = MatmulAlgo(), problem
        a, b, c, d = (data_type(f"{x}_dtype", getattr(p, f"{x}_dtype")) for x in "abcd")
        compute, scale = COMPUTE_TYPES[p.compute_type], data_type("scale_dtype", p.scale_dtype)
        init = self._functions["cublasLtMatmulAlgoInit"]
        status = init(self._handle, compute, scale, a, b, c, d, answer.algo_id, ctypes.byref(algo))
        if status != SUCCESS:
            return Refused(status=status_name(status))
        present = self.read(ctypes.addressof(algo))
        for name, number, size in ALGO_CONFIG_ATTRIBUTES[1:]:
            wanted = getattr(answer, name)
            if present[name] == wanted:
                continue
            value = ctypes.c_uint64(wanted)
            setter = self._functions["cublasLtMatmulAlgoConfigSetAttribute"]
            status = setter(ctypes.byref(algo), number, ctypes.byref(value), size)
            if status != SUCCESS:
                return Refused(status=status_name(status))
        return algo


def opaque_bytes(answer: AlgoConfig) -> bytes:
    """The recorded struct of ``answer``, 64 bytes.

    Raises:
        InvalidInputError: ``opaque`` is not the hex text of 64 bytes.
    """
    try:
        raw = bytes.fromhex(answer.opaque)
    except ValueError:
        raw = b""
    if len(raw) != ctypes.sizeof(MatmulAlgo):
        raise InvalidInputError(f"opaque must be 64 bytes in hex (got {answer.opaque!r})")
    return raw
