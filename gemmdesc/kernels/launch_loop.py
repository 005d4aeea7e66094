"""Launching several kernels by one call: a loop in C, built by Triton's own means, which needs a C compiler anyway.

Each call through ctypes costs the host about a tenth of a launch, and what surrounds it in Python as much again.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

_NAME = "gemmdesc_launch_loop"
#: ``launch_all(launch, steps, first, count)``: see :func:`launch_loop`.
_SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef int (*launch_t)(const void *config, void *function, void **parameters, void **extra);
typedef struct {
  uint64_t config, function, parameters;
} step_t;

static PyObject *launch_all(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  uint64_t given[4];
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "launch_all takes 4 numbers");
    return NULL;
  }
  for (int i = 0; i < 4; ++i) {
    given[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (given[i] == (uint64_t)-1 && PyErr_Occurred())
      return NULL;
  }
  launch_t launch = (launch_t)(uintptr_t)given[0];
  const step_t *steps = (const step_t *)(uintptr_t)given[1];
  uint64_t at = given[2];
  uint32_t status = 0;
  Py_BEGIN_ALLOW_THREADS /* a launch may wait for room in the stream's queue */
  for (; at < given[3]; ++at) {
    const step_t *step = steps + at;
    status = (uint32_t)launch((const void *)(uintptr_t)step->config, (void *)(uintptr_t)step->function,
                              (void **)(uintptr_t)step->parameters, NULL);
    if (status)
      break;
  }
  Py_END_ALLOW_THREADS
  return PyLong_FromUnsignedLongLong(status ? at << 32 | status : 0);
}

typedef int (*capture_t)(void *stream, int *status, uint64_t *id, void **graph, void **dependencies, size_t *count);
typedef int (*number_t)(void *stream, uint64_t *id);

static PyObject *order_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  uint64_t given[3], capture = 0, number = 0;
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "order_of takes 3 numbers");
    return NULL;
  }
  for (int i = 0; i < 3; ++i) {
    given[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (given[i] == (uint64_t)-1 && PyErr_Occurred())
      return NULL;
  }
  void *stream = (void *)(uintptr_t)given[2];
  int captured = 0;
  int status = ((capture_t)(uintptr_t)given[0])(stream, &captured, &capture, NULL, NULL, NULL);
  if (!status && !captured)
    status = ((number_t)(uintptr_t)given[1])(stream, &number);
  return Py_BuildValue("iKK", status, (unsigned long long)(captured ? capture + 1 : 0), (unsigned long long)number);
}

static PyMethodDef methods[] = {
    {"launch_all", (PyCFunction)(void (*)(void))launch_all, METH_FASTCALL, NULL},
    {"order_of", (PyCFunction)(void (*)(void))order_of, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "gemmdesc_launch_loop", NULL, -1, methods};
PyMODINIT_FUNC PyInit_gemmdesc_launch_loop(void) { return PyModule_Create(&module); }
"""


def one_by_one(launch: Callable[[int, int, int, None], int], steps: int, first: int, count: int) -> int:
    """What :func:`launch_loop` gives, in Python; ``launch``: the function itself."""
    words = (ctypes.c_uint64 * (3 * count)).from_address(steps)
    for at in range(first, count):
        status = launch(words[3 * at], words[3 * at + 1], words[3 * at + 2], None)
        if status:
            return at << 32 | status
    return 0


def order_by_ctypes(
    capture: Callable[..., int], number: Callable[[int, int], int], stream: int
) -> tuple[int, int, int]:
    """What :func:`stream_order` gives, in Python; ``capture`` and ``number``: the functions themselves."""
    captured, capture_id, stream_id = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    found = ctypes.addressof(captured), ctypes.addressof(capture_id)
    status = capture(stream, *found, None, None, None)
    if status == 0 and not captured.value:
        status = number(stream, ctypes.addressof(stream_id))
    return status, capture_id.value + 1 if captured.value else 0, stream_id.value


@cache
def launch_loop() -> Callable[[int, int, int, int], int] | None:
    """``launch_all(launch, steps, first, count)``, or None where it cannot be built.

    ``launch``: the address of ``cuLaunchKernelEx``.  ``steps``: that of three words for each step: its configuration,
    its function, its parameters.  Steps ``first`` to ``count`` are launched; the result is 0, or of the first that
    fails its place times 2^32, plus its status.
    """
    found: Callable[[int, int, int, int], int] | None = _built("launch_all")
    return found


@cache
def stream_order() -> Callable[[int, int, int], tuple[int, int, int]] | None:
    """``order_of(capture, number, stream)``, or None where it cannot be built.

    ``capture``, ``number``: the addresses of ``cuStreamGetCaptureInfo_v2`` and ``cuStreamGetId``.  The result is a
    status; the number of the capture that ``stream`` is in, plus 1, and 0 where it is in none; and else the stream's.
    """
    found: Callable[[int, int, int], tuple[int, int, int]] | None = _built("order_of")
    return found


def _built(name: str) -> Any:
    try:
        from triton.runtime.build import compile_module_from_src

        return getattr(compile_module_from_src(_SOURCE, _NAME), name)
    except (ImportError, TypeError, RuntimeError, OSError, subprocess.SubprocessError):
        return None
