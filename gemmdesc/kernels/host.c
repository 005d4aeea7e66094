/* What the host does at each call, in C: launching a program's steps, and reading how tensors are stored.

   Python does the same where this cannot be built; see launch_loop.py, prepared.py and ops/stored.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* --- Launching. --- */

typedef int (*launch_t)(const void *config, void *function, void **parameters, void **extra);
typedef struct {
  uint64_t config, function, parameters;
} step_t;

static int numbers(PyObject *const *args, Py_ssize_t count, Py_ssize_t wanted, uint64_t *given) {
  if (count != wanted) {
    PyErr_Format(PyExc_TypeError, "there must be %zd numbers (got %zd)", wanted, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < wanted; ++i) {
    given[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (given[i] == (uint64_t)-1 && PyErr_Occurred())
      return -1;
  }
  return 0;
}

/* 0, or of the first step that fails its place times 2^32, plus its status. */
static uint64_t launched(launch_t launch, const step_t *steps, uint64_t at, uint64_t end) {
  uint32_t status = 0;
  Py_BEGIN_ALLOW_THREADS /* a launch may wait for room in the stream's queue */
  for (; at < end; ++at) {
    const step_t *step = steps + at;
    status = (uint32_t)launch((const void *)(uintptr_t)step->config, (void *)(uintptr_t)step->function,
                              (void **)(uintptr_t)step->parameters, NULL);
    if (status)
      break;
  }
  Py_END_ALLOW_THREADS
  return status ? at << 32 | status : 0;
}

/* launch_all(launch, steps, first, count) */
static PyObject *launch_all(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  uint64_t given[4];
  if (numbers(args, count, 4, given))
    return NULL;
  const step_t *steps = (const step_t *)(uintptr_t)given[1];
  return PyLong_FromUnsignedLongLong(launched((launch_t)(uintptr_t)given[0], steps, given[2], given[3]));
}

/* One word of a call's arguments: an input plus an offset, or the address of the tensor map of that address. */
typedef struct {
  uint64_t word;
  int64_t input, offset; /* a negative input counts from behind */
} patch_t;

/* Which words of a program change: how many of each kind, the steps' place, then the patches, then the streams' words. */
typedef struct {
  uint64_t addresses, maps, streams, steps_word, launches;
  patch_t patches[];
} recipe_t;

enum { MOST_MAPS = 32 };

static uint64_t input_of(PyObject *inputs, const patch_t *patch) {
  Py_ssize_t count = PyTuple_GET_SIZE(inputs), place = (Py_ssize_t)patch->input + (patch->input < 0 ? count : 0);
  if (place < 0 || place >= count) {
    PyErr_SetString(PyExc_IndexError, "inputs must be as many as the program needs");
    return (uint64_t)-1;
  }
  uint64_t found = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(inputs, place));
  return found == (uint64_t)-1 && PyErr_Occurred() ? found : found + (uint64_t)patch->offset;
}

/* run_program(launch, memory, recipe, stream, inputs, maps): writes the words at ``memory`` and launches all steps.

   maps: for each map of the recipe a dict of addresses, whose values have their map's as ``address``.
   The result is launch_all's, or None, nothing launched, where a map is still to be made. */
static PyObject *run_program(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  static PyObject *address_name = NULL;
  uint64_t launch, memory, stream;
  if (count != 6 || !PyBytes_CheckExact(args[2]) || !PyTuple_CheckExact(args[4]) || !PyTuple_CheckExact(args[5])) {
    PyErr_SetString(PyExc_TypeError, "run_program takes two addresses, bytes, a stream and two tuples");
    return NULL;
  }
  if (numbers(args, 1, 1, &launch) || numbers(args + 1, 1, 1, &memory) || numbers(args + 3, 1, 1, &stream))
    return NULL;
  if (address_name == NULL && (address_name = PyUnicode_InternFromString("address")) == NULL)
    return NULL;
  const recipe_t *recipe = (const recipe_t *)PyBytes_AS_STRING(args[2]);
  uint64_t *words = (uint64_t *)(uintptr_t)memory;
  const patch_t *patch = recipe->patches;
  PyObject *inputs = args[4], *tables = args[5], *result = NULL;
  /* Another thread may forget a map while this one launches. */
  PyObject *held[MOST_MAPS];
  int holding = 0;
  if (recipe->maps > MOST_MAPS || (uint64_t)PyTuple_GET_SIZE(tables) != recipe->maps) {
    PyErr_SetString(PyExc_ValueError, "maps must be those of the recipe");
    return NULL;
  }
  for (uint64_t i = 0; i < recipe->addresses; ++i, ++patch) {
    uint64_t value = input_of(inputs, patch);
    if (value == (uint64_t)-1 && PyErr_Occurred())
      return NULL;
    words[patch->word] = value;
  }
  for (uint64_t i = 0; i < recipe->maps; ++i, ++patch) {
    uint64_t value = input_of(inputs, patch);
    if (value == (uint64_t)-1 && PyErr_Occurred())
      goto done;
    PyObject *key = PyLong_FromUnsignedLongLong(value);
    if (key == NULL)
      goto done;
    PyObject *map = PyDict_GetItemWithError(PyTuple_GET_ITEM(tables, (Py_ssize_t)i), key);
    Py_XINCREF(map);
    Py_DECREF(key);
    if (map == NULL) {
      if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
      goto done;
    }
    held[holding++] = map;
    PyObject *at = PyObject_GetAttr(map, address_name);
    if (at == NULL)
      goto done;
    words[patch->word] = PyLong_AsUnsignedLongLong(at);
    Py_DECREF(at);
    if (words[patch->word] == (uint64_t)-1 && PyErr_Occurred())
      goto done;
  }
  const uint64_t *streams = (const uint64_t *)patch;
  for (uint64_t i = 0; i < recipe->streams; ++i)
    words[streams[i]] = stream;
  result = PyLong_FromUnsignedLongLong(
      launched((launch_t)(uintptr_t)launch, (const step_t *)(words + recipe->steps_word), 0, recipe->launches));
done:
  while (holding)
    Py_DECREF(held[--holding]);
  return result;
}

typedef int (*capture_t)(void *stream, int *status, uint64_t *id, void **graph, void **dependencies, size_t *count);
typedef int (*number_t)(void *stream, uint64_t *id);

/* order_of(capture, number, stream) */
static PyObject *order_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  uint64_t given[3], capture = 0, number = 0;
  if (numbers(args, count, 3, given))
    return NULL;
  void *stream = (void *)(uintptr_t)given[2];
  int captured = 0;
  int status = ((capture_t)(uintptr_t)given[0])(stream, &captured, &capture, NULL, NULL, NULL);
  if (!status && !captured)
    status = ((number_t)(uintptr_t)given[1])(stream, &number);
  return Py_BuildValue("iKK", status, (unsigned long long)(captured ? capture + 1 : 0), (unsigned long long)number);
}

/* --- Reading tensors, by DLPack's C functions: the part of its header, version 1, that is used. --- */

typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tensor_t;

typedef struct {
  uint32_t major, minor;
  void *previous, *allocate, *managed_from, *managed_to;
  int (*tensor_from)(void *object, tensor_t *out);
  void *current_stream;
} exchange_t;

enum { VERSION = 1, MOST_TENSORS = 16, MOST_DIMENSIONS = 8 };

/* What read_tensors is given first: see ops/stored.py. */
enum {
  TYPE, PARAMETER, EXCHANGE, DEVICE_TYPE, CURRENT_DEVICE, CAPTURING, GRAD, SETTINGS, UNUSUAL, IS_NEG, REQUIRES_GRAD, STATE
};

static const exchange_t *exchange_of(PyObject *capsule) {
  const exchange_t *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (found != NULL && (found->major != VERSION || found->tensor_from == NULL)) {
    PyErr_SetString(PyExc_ValueError, "the exchange must be of DLPack 1, and lend tensors");
    return NULL;
  }
  return found;
}

/* Whether what ``callable`` gives is true; -1 where it fails. */
static int is_true(PyObject *callable) {
  PyObject *found = PyObject_CallNoArgs(callable);
  if (found == NULL)
    return -1;
  int result = found == Py_True ? 1 : found == Py_False ? 0 : PyObject_IsTrue(found);
  Py_DECREF(found);
  return result;
}

/* gather(callables): what each of a tuple gives, as a tuple. */
static PyObject *gather(PyObject *self, PyObject *parts) {
  if (!PyTuple_CheckExact(parts)) {
    PyErr_SetString(PyExc_TypeError, "gather takes a tuple");
    return NULL;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(parts);
  PyObject *result = PyTuple_New(count);
  for (Py_ssize_t i = 0; result != NULL && i < count; ++i) {
    PyObject *value = PyObject_CallNoArgs(PyTuple_GET_ITEM(parts, i));
    if (value == NULL) {
      Py_CLEAR(result);
      break;
    }
    PyTuple_SET_ITEM(result, i, value);
  }
  return result;
}

/* Appends how a tensor is stored, and its address; 1 where the call is for the long way, -1 on an error. */
static int add_tensor(PyObject *state, const exchange_t *exchange, PyObject *tensor, int64_t index, int graph,
                      int64_t **to, int64_t *end, PyObject **at) {
  PyObject *type = (PyObject *)Py_TYPE(tensor);
  if (type != PyTuple_GET_ITEM(state, TYPE) && type != PyTuple_GET_ITEM(state, PARAMETER))
    return 1;
  tensor_t given;
  if (exchange->tensor_from(tensor, &given)) { /* no strides, no memory, or a type of its own */
    PyErr_Clear();
    return 1;
  }
  uint64_t address = (uint64_t)(uintptr_t)given.data + given.byte_offset;
  if (given.device_type != PyLong_AsLong(PyTuple_GET_ITEM(state, DEVICE_TYPE)) || given.device_id != index || !address ||
      given.ndim < 0 || given.ndim > MOST_DIMENSIONS || *to + 3 + 2 * given.ndim > end)
    return 1;
  PyObject *lazily = PyObject_CallOneArg(PyTuple_GET_ITEM(state, IS_NEG), tensor);
  if (lazily == NULL)
    return -1;
  int unusual = lazily != Py_False;
  Py_DECREF(lazily);
  if (!unusual && graph) {
    PyObject *wanted = PyObject_GetAttr(tensor, PyTuple_GET_ITEM(state, REQUIRES_GRAD));
    if (wanted == NULL)
      return -1;
    unusual = wanted != Py_False;
    Py_DECREF(wanted);
  }
  if (unusual)
    return 1;
  *(*to)++ = given.ndim;
  *(*to)++ = (int64_t)given.code << 32 | (int64_t)given.bits << 16 | given.lanes;
  *(*to)++ = (int64_t)(address & -address & 255);
  memcpy(*to, given.shape, 8 * (size_t)given.ndim);
  *to += given.ndim;
  memcpy(*to, given.strides, 8 * (size_t)given.ndim);
  *to += given.ndim;
  *at = PyLong_FromUnsignedLongLong(address);
  return *at == NULL ? -1 : 0;
}

/* read_tensors(state, head, tensors, operands): (key, addresses, device), or None where the call is for the long way.

   The key is (head, how all is stored, the operands' names, whether a graph is captured, settings). */
static PyObject *read_tensors(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) != STATE || !PyTuple_CheckExact(args[2]) ||
      (args[3] != Py_None && !PyDict_CheckExact(args[3]))) {
    PyErr_SetString(PyExc_TypeError, "read_tensors takes a state, a head, a tuple of tensors and a dict or None");
    return NULL;
  }
  PyObject *state = args[0], *tensors = args[2], *operands = args[3] == Py_None ? NULL : args[3];
  const exchange_t *exchange = exchange_of(PyTuple_GET_ITEM(state, EXCHANGE));
  if (exchange == NULL)
    return NULL;
  int64_t stored[MOST_TENSORS * (3 + 2 * MOST_DIMENSIONS)], *to = stored;
  int64_t *end = stored + sizeof stored / sizeof *stored;
  Py_ssize_t own = PyTuple_GET_SIZE(tensors), beside = operands == NULL ? 0 : PyDict_GET_SIZE(operands);
  PyObject *result = NULL, *at = NULL, *names = NULL, *current = NULL, *unusual = PyTuple_GET_ITEM(state, UNUSUAL);
  if (own == 0 || own + beside > MOST_TENSORS)
    Py_RETURN_NONE;
  /* Torch is not asked of its device before there is a tensor on one. */
  tensor_t first;
  PyObject *leading = PyTuple_GET_ITEM(tensors, 0), *type = (PyObject *)Py_TYPE(leading);
  if (type != PyTuple_GET_ITEM(state, TYPE) && type != PyTuple_GET_ITEM(state, PARAMETER))
    Py_RETURN_NONE;
  if (exchange->tensor_from(leading, &first)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  if (first.device_type != PyLong_AsLong(PyTuple_GET_ITEM(state, DEVICE_TYPE)))
    Py_RETURN_NONE;
  int failed = 0;
  for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(unusual); ++i)
    failed = is_true(PyTuple_GET_ITEM(unusual, i));
  if (failed)
    goto done;
  int graph = is_true(PyTuple_GET_ITEM(state, GRAD));
  current = PyObject_CallNoArgs(PyTuple_GET_ITEM(state, CURRENT_DEVICE));
  at = PyTuple_New(own + beside);
  names = PyTuple_New(beside);
  failed = graph < 0 || current == NULL || at == NULL || names == NULL ? -1 : 0;
  int64_t index = failed ? -1 : PyLong_AsLongLong(current);
  if (index == -1 && PyErr_Occurred())
    failed = -1;
  for (Py_ssize_t i = 0; !failed && i < own; ++i)
    failed = add_tensor(state, exchange, PyTuple_GET_ITEM(tensors, i), index, graph, &to, end,
                        &PyTuple_GET_ITEM(at, i));
  PyObject *name, *tensor;
  Py_ssize_t place = 0;
  for (Py_ssize_t i = 0; !failed && i < beside; ++i) {
    if (!PyDict_Next(operands, &place, &name, &tensor)) { /* another thread changes it */
      failed = 1;
      break;
    }
    PyTuple_SET_ITEM(names, i, Py_NewRef(name));
    Py_INCREF(tensor);
    failed = add_tensor(state, exchange, tensor, index, graph, &to, end, &PyTuple_GET_ITEM(at, own + i));
    Py_DECREF(tensor);
  }
  if (failed)
    goto done;
  int capturing = is_true(PyTuple_GET_ITEM(state, CAPTURING));
  PyObject *settings = capturing < 0 ? NULL : gather(self, PyTuple_GET_ITEM(state, SETTINGS));
  PyObject *bytes = settings == NULL ? NULL : PyBytes_FromStringAndSize((char *)stored, (char *)to - (char *)stored);
  PyObject *key = bytes == NULL ? NULL : PyTuple_Pack(5, args[1], bytes, names, capturing ? Py_True : Py_False, settings);
  if (key != NULL)
    result = PyTuple_Pack(3, key, at, current);
  else
    failed = -1;
  Py_XDECREF(settings);
  Py_XDECREF(bytes);
  Py_XDECREF(key);
done:
  Py_XDECREF(at);
  Py_XDECREF(names);
  Py_XDECREF(current);
  if (failed > 0)
    Py_RETURN_NONE;
  return result;
}

static PyMethodDef methods[] = {
    {"launch_all", (PyCFunction)(void (*)(void))launch_all, METH_FASTCALL, NULL},
    {"run_program", (PyCFunction)(void (*)(void))run_program, METH_FASTCALL, NULL},
    {"order_of", (PyCFunction)(void (*)(void))order_of, METH_FASTCALL, NULL},
    {"read_tensors", (PyCFunction)(void (*)(void))read_tensors, METH_FASTCALL, NULL},
    {"gather", gather, METH_O, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "gemmdesc_host", NULL, -1, methods};
PyMODINIT_FUNC PyInit_gemmdesc_host(void) { return PyModule_Create(&module); }
