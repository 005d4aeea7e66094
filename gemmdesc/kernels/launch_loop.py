"""Launching several kernels by one call: a loop in C, built by Triton's own means, which needs a C compiler anyway.

Each call through ctypes costs the host about a tenth of a launch, and what surrounds it in Python as much again.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache

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

static PyMethodDef methods[] = {
    {"launch_all", (PyCFunction)(void (*)(void))launch_all, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
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


@cache
def launch_loop() -> Callable[[int, int, int, int], int] | None:
    """``launch_all(launch, steps, first, count)``, or None where it cannot be built.

    ``launch``: the address of ``cuLaunchKernelEx``.  ``steps``: that of three words for each step: its configuration,
    its function, its parameters.  Steps ``first`` to ``count`` are launched; the result is 0, or of the first that
    fails its place times 2^32, plus its status.
    """
    try:
        from triton.runtime.build import compile_module_from_src

        built = compile_module_from_src(_SOURCE, _NAME)
    except (ImportError, TypeError, RuntimeError, OSError, subprocess.SubprocessError):
        return None
    found: Callable[[int, int, int, int], int] = built.launch_all
    return found
