"""Kernel names from two sources, made comparable."""

from __future__ import annotations

import pytest

from gemmdesc.library.profiler import Agreement, cross_check, normalised
from gemmdesc.problem import KernelNode, Launch


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_hsh_64x64_64x13_4x2_h_bz_TNT", "nvjet_sm90_hsh_64x64_64x13_4x2_h_bz_TNT"),
        ("_Z6kernelIfEvPT_i", "kernel<float>(float*,int)"),
        ("void kernel<float>(float*, int)", "kernel<float>(float*,int)"),
        ("_Znonsense", "_Znonsense"),
    ],
)
def test_names_are_comparable(name: str, expected: str) -> None:
    assert normalised(name) == expected


def test_without_a_gpu_the_check_is_unavailable() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    kernel = KernelNode(name="_Z1fv", grid=(1, 1, 1), block=(1, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    assert cross_check(None, lambda: None).agreement is Agreement.UNAVAILABLE
    checked = cross_check(Launch(kernels=(kernel,)), lambda: None)
    assert (checked.agreement, checked.captured) == (Agreement.UNAVAILABLE, ("f()",))
