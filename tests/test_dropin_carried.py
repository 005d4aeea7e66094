"""What torch carries to the threads of its backward passes stays alive, whether torch counts a reference or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent

#: A torch that counts no reference is made of one that does by giving that reference up; one that counts none is one as
#: it is.  What was freed is written over by the tuples of ``filled``, or brings the process down.
CHURN = """
import ctypes, gc, sys, threading
import torch
from gemmdesc.dropin import carried as module
from gemmdesc.dropin.carried import carried, carry
from gemmdesc.dropin.intercept import intercepted, is_intercepted

own = torch._C._stash_obj_in_tls
kept = object()
before = sys.getrefcount(kept)
own("kept", kept)
counts = sys.getrefcount(kept) > before

def counting_none(name, value):
    own(name, value)
    if counts:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))

class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        leaf = torch.ones(3, 3).requires_grad_()
        with torch.enable_grad():
            if ctx.depth:
                Nested.apply(leaf, ctx.depth - 1).sum().backward()
            else:
                gc.collect()
                threads.add(threading.get_ident())
                found.append(carried("test.value", None))
                torch.mm(leaf, leaf).sum().backward()
        return grad, None

class Value:
    pass

def churned():
    for number in range(12):
        seen = []
        def handle(call, number=number, seen=seen):
            seen.append((number, is_intercepted()))
            return call.run()
        carry("test.value", (number, f"value {number}"))
        with intercepted(handle), intercepted(lambda call, h=handle: h(call)):
            gc.collect()
            filled.extend((object(), object()) for _ in range(200))
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            if number % 6 == 0:
                Nested.apply(torch.ones(3, 3).requires_grad_(), 70).sum().backward()
        assert seen == [(number, False)] * (4 if number % 6 == 0 else 1), seen
        assert carried("test.value", None) == (number, f"value {number}")
        assert not is_intercepted()
    assert threads and threading.get_ident() not in threads
    assert found == [(n, f"value {n}") for n in (0, 6)], found
    value = Value()
    for _ in range(100):
        carry("test.value", value)
    gc.collect()
    assert sys.getrefcount(value) == 3, sys.getrefcount(value)  # the name, the argument, torch's one
    carry("test.value", None)
    assert sys.getrefcount(value) == 2, sys.getrefcount(value)

for stash in (own, counting_none):
    threads, found, filled = set(), [], []
    torch._C._stash_obj_in_tls = stash
    module._torch_counts.cache_clear()
    churned()
    print("alive")
"""


def test_what_is_carried_stays_alive() -> None:
    done = subprocess.run([sys.executable, "-c", CHURN], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "alive\nalive\n"), done.stderr[-2000:]
