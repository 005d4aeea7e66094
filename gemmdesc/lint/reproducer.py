"""A script that shows a lost tail with nothing but torch."""

from __future__ import annotations

from gemmdesc.books import Book
from gemmdesc.errors import InvalidInputError
from gemmdesc.lint.findings import ShapeReport

_TEMPLATE = '''"""The last {lost} k of a ({m}, {k}) x ({k}, {n}) product of {dtype} are in no sum of cuBLAS's.

Needs torch and nothing else.  Recorded on {card} with cuBLASLt {release}, where cuBLASLt's heuristic answers with
{answer}.

    python {name}                # exit code 1: the tail is lost here, 0: it is not, 2: no GPU
    python {name} --device cpu   # the same product where nothing is lost
"""

import os
import sys

# As it was recorded: the heuristic looks at the workspace.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = "{workspace}"

import torch

M, N, K, LOST = {m}, {n}, {k}, {lost}
DTYPE, RESULT = torch.{dtype}, torch.{out_dtype}


def matrix(rows: int, columns: int, transposed: bool, device: str) -> torch.Tensor:
    """Zeros, stored by rows, or as the transpose of a matrix stored by rows."""
    if transposed:
        return torch.zeros(columns, rows, dtype=DTYPE, device=device).T
    return torch.zeros(rows, columns, dtype=DTYPE, device=device)


def main() -> int:
    device = "cpu" if sys.argv[1:] == ["--device", "cpu"] else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 2
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = {fp16_reduced}
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = {bf16_reduced}
    a = matrix(M, K, {a_transposed}, device)
    b = matrix(K, N, {b_transposed}, device)
    # a is zero but for its last LOST columns, so that every element of the product is LOST and comes from them alone.
    a[:, K - LOST :] = 1
    b[:] = 1
    d = {product}
    wanted = torch.tensor(LOST, dtype=RESULT)
    wrong = int((d != wanted.to(device)).sum())
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print(f"torch {{torch.__version__}} on {{where}}: every element should be {{wanted.item()}}")
    print(f"{{wrong}} of {{d.numel()}} elements are not (between {{d.min().item()}} and {{d.max().item()}})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def reproducer(report: ShapeReport, book: Book, name: str = "lost_tail.py") -> str:
    """The text of a script, to be saved as ``name``, that multiplies where only the lost k are not zero.

    Raises:
        InvalidInputError: the product loses nothing, or its answer is not known.
    """
    shape, answer = report.shape, report.answer
    if not report.lost_tail or answer is None:
        raise InvalidInputError(f"report must be of a product that loses a tail (got {shape})")
    wide = shape.out_dtype is not shape.dtype
    return _TEMPLATE.format(
        m=shape.m, n=shape.n, k=shape.k, lost=report.lost_tail, dtype=shape.dtype.value, name=name,
        out_dtype=shape.out_dtype.value, card=book.device.name or book.device.folder, release=book.library.version,
        answer=f"ALGO_ID {answer.algo_id}, SPLITK_NUM {answer.splitk_num}, STAGES_ID {answer.stages_id}",
        workspace=f":{max(1, book.settings.workspace_bytes // 1024)}:1",
        a_transposed=shape.layout[0] == "t", b_transposed=shape.layout[1] == "t",
        product="torch.mm(a, b, RESULT)" if wide else "torch.mm(a, b)",
        fp16_reduced=book.settings.allow_fp16_reduced_precision_reduction,
        bf16_reduced=book.settings.allow_bf16_reduced_precision_reduction,
    )  # fmt: skip
