/* What the host does at each call, in C: launching a program's steps, and reading how tensors are stored.

   Python does the same where this cannot be built; see launch_loop.py, prepared.py and ops/stored.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* --- Launching. --- */

enum { MOST_INPUTS = 64 };

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

/* A program, all numbers of eight bytes: how many of each, the first word of its steps, how many steps; then its words;
   (word, word that it holds the address of); (word, input, offset) of addresses, then of tensor maps, whose words hold
   where the map of that address is; and the words of the stream.  A negative input counts from behind. */
typedef struct {
  int64_t words, pointers, addresses, maps, streams, steps_word, launches;
  int64_t rest[];
} program_t;
typedef struct {
  int64_t word, input, offset;
} patch_t;

enum { MOST_WORDS = 2048, MOST_MAPS = 32 };
/* Of run: a map is still to be made, or there is an exception. */
#define NO_MAP (~(uint64_t)0)
#define RAISED (~(uint64_t)1)

static int input_of(const uint64_t *inputs, int64_t count, const int64_t *patch, uint64_t *value) {
  int64_t place = patch[1] + (patch[1] < 0 ? count : 0);
  if (place < 0 || place >= count) {
    PyErr_SetString(PyExc_IndexError, "inputs must be as many as the program needs");
    return -1;
  }
  *value = inputs[place] + (uint64_t)patch[2];
  return 0;
}

/* The word of a map, and the map, which another thread may forget while this one launches. */
static int put_map(PyObject *table, uint64_t address, uint64_t *word, PyObject **held) {
  PyObject *key = PyLong_FromUnsignedLongLong(address);
  if (key == NULL)
    return -1;
  PyObject *map = PyDict_GetItemWithError(table, key);
  Py_XINCREF(map);
  Py_DECREF(key);
  if (map == NULL)
    return PyErr_Occurred() ? -1 : 1;
  *held = map;
  PyObject *at = PyObject_GetAttrString(map, "address");
  if (at == NULL)
    return -1;
  *word = PyLong_AsUnsignedLongLong(at);
  Py_DECREF(at);
  return *word == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* Launches a program's steps on words of this call's own; nothing where the result is NO_MAP or RAISED. */
static uint64_t run(launch_t launch, PyObject *packed, uint64_t stream, const uint64_t *inputs, int64_t count,
                    PyObject *tables) {
  const program_t *program = (const program_t *)PyBytes_AS_STRING(packed);
  if (program->words > MOST_WORDS || program->maps > MOST_MAPS || PyTuple_GET_SIZE(tables) != program->maps) {
    PyErr_SetString(PyExc_ValueError, "program must be small, and maps its own");
    return RAISED;
  }
  uint64_t words[MOST_WORDS], result = RAISED;
  PyObject *held[MOST_MAPS];
  int holding = 0;
  const int64_t *at = program->rest + program->words;
  memcpy(words, program->rest, 8 * (size_t)program->words);
  for (int64_t i = 0; i < program->pointers; ++i, at += 2)
    words[at[0]] = (uint64_t)(uintptr_t)(words + at[1]);
  for (int64_t i = 0; i < program->addresses; ++i, at += 3)
    if (input_of(inputs, count, at, &words[at[0]]))
      return RAISED;
  for (int64_t i = 0; i < program->maps; ++i, at += 3) {
    uint64_t address;
    int lacking = input_of(inputs, count, at, &address);
    held[holding] = NULL;
    if (!lacking)
      lacking = put_map(PyTuple_GET_ITEM(tables, (Py_ssize_t)i), address, &words[at[0]], &held[holding]);
    holding += held[holding] != NULL;
    if (lacking) {
      result = lacking > 0 ? NO_MAP : RAISED;
      goto done;
    }
  }
  for (int64_t i = 0; i < program->streams; ++i)
    words[at[i]] = stream;
  result = launched(launch, (const step_t *)(words + program->steps_word), 0, (uint64_t)program->launches);
done:
  while (holding)
    Py_DECREF(held[--holding]);
  return result;
}

/* run_program(launch, program, stream, inputs, maps): maps are for each of the program's a dict of addresses, whose
   values have their map's as ``address``.  Gives launch_all's result, or None, nothing launched, where one is lacking. */
static PyObject *run_program(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  uint64_t launch, stream, inputs[MOST_INPUTS];
  if (count != 5 || !PyBytes_CheckExact(args[1]) || !PyTuple_CheckExact(args[3]) || !PyTuple_CheckExact(args[4]) ||
      PyTuple_GET_SIZE(args[3]) > MOST_INPUTS) {
    PyErr_SetString(PyExc_TypeError, "run_program takes an address, bytes, a stream and two tuples");
    return NULL;
  }
  if (numbers(args, 1, 1, &launch) || numbers(args + 2, 1, 1, &stream) ||
      numbers(&PyTuple_GET_ITEM(args[3], 0), PyTuple_GET_SIZE(args[3]), PyTuple_GET_SIZE(args[3]), inputs))
    return NULL;
  uint64_t status =
      run((launch_t)(uintptr_t)launch, args[1], stream, inputs, (int64_t)PyTuple_GET_SIZE(args[3]), args[4]);
  if (status == RAISED)
    return NULL;
  if (status == NO_MAP)
    Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(status);
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
  TYPE, PARAMETER, EXCHANGE, DEVICE_TYPE, CURRENT_DEVICE, CAPTURING, GRAD, SETTINGS, UNUSUAL, IS_NEG, REQUIRES_GRAD,
  CURRENT_STREAM, STATE
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
                      int64_t **to, int64_t *end, uint64_t *at) {
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
  *at = address;
  return 0;
}

/* A call as it is found: its key, the device, and the addresses of its tensors. */
typedef struct {
  PyObject *key, *device;
  uint64_t at[MOST_TENSORS];
  Py_ssize_t count;
} call_t;

/* Arguments are a state, a head, a tuple of tensors, a dict or None.  1 where the call is for the long way, -1 on an
   error; 0, with new references in ``call``, else. */
static int read_call(PyObject *const *args, call_t *call) {
  if (!PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) != STATE || !PyTuple_CheckExact(args[2]) ||
      (args[3] != Py_None && !PyDict_CheckExact(args[3]))) {
    PyErr_SetString(PyExc_TypeError, "a call must be a state, a head, a tuple of tensors and a dict or None");
    return -1;
  }
  PyObject *state = args[0], *tensors = args[2], *operands = args[3] == Py_None ? NULL : args[3];
  const exchange_t *exchange = exchange_of(PyTuple_GET_ITEM(state, EXCHANGE));
  if (exchange == NULL)
    return -1;
  int64_t stored[MOST_TENSORS * (3 + 2 * MOST_DIMENSIONS)], *to = stored;
  int64_t *end = stored + sizeof stored / sizeof *stored;
  Py_ssize_t own = PyTuple_GET_SIZE(tensors), beside = operands == NULL ? 0 : PyDict_GET_SIZE(operands), place = 0;
  PyObject *names = NULL, *settings = NULL, *bytes = NULL, *name, *tensor, *unusual = PyTuple_GET_ITEM(state, UNUSUAL);
  call->key = call->device = NULL;
  call->count = own + beside;
  if (own == 0 || call->count > MOST_TENSORS)
    return 1;
  /* Torch is not asked of its device before there is a tensor on one. */
  tensor_t first;
  PyObject *leading = PyTuple_GET_ITEM(tensors, 0), *type = (PyObject *)Py_TYPE(leading);
  if (type != PyTuple_GET_ITEM(state, TYPE) && type != PyTuple_GET_ITEM(state, PARAMETER))
    return 1;
  if (exchange->tensor_from(leading, &first)) {
    PyErr_Clear();
    return 1;
  }
  if (first.device_type != PyLong_AsLong(PyTuple_GET_ITEM(state, DEVICE_TYPE)))
    return 1;
  int failed = 0, graph, capturing;
  for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(unusual); ++i)
    failed = is_true(PyTuple_GET_ITEM(unusual, i));
  if (failed)
    return failed;
  failed = -1;
  if ((graph = is_true(PyTuple_GET_ITEM(state, GRAD))) < 0 ||
      (call->device = PyObject_CallNoArgs(PyTuple_GET_ITEM(state, CURRENT_DEVICE))) == NULL ||
      (names = PyTuple_New(beside)) == NULL)
    goto done;
  int64_t index = PyLong_AsLongLong(call->device);
  if (index == -1 && PyErr_Occurred())
    goto done;
  failed = 0;
  for (Py_ssize_t i = 0; !failed && i < own; ++i)
    failed = add_tensor(state, exchange, PyTuple_GET_ITEM(tensors, i), index, graph, &to, end, &call->at[i]);
  for (Py_ssize_t i = 0; !failed && i < beside; ++i) {
    if (!PyDict_Next(operands, &place, &name, &tensor)) { /* another thread changes it */
      failed = 1;
      break;
    }
    PyTuple_SET_ITEM(names, i, Py_NewRef(name));
    Py_INCREF(tensor);
    failed = add_tensor(state, exchange, tensor, index, graph, &to, end, &call->at[own + i]);
    Py_DECREF(tensor);
  }
  if (failed)
    goto done;
  failed = -1;
  if ((capturing = is_true(PyTuple_GET_ITEM(state, CAPTURING))) < 0 ||
      (settings = gather(NULL, PyTuple_GET_ITEM(state, SETTINGS))) == NULL ||
      (bytes = PyBytes_FromStringAndSize((char *)stored, (char *)to - (char *)stored)) == NULL)
    goto done;
  call->key = PyTuple_Pack(5, args[1], bytes, names, capturing ? Py_True : Py_False, settings);
  failed = call->key == NULL ? -1 : 0;
done:
  Py_XDECREF(settings);
  Py_XDECREF(bytes);
  Py_XDECREF(names);
  if (failed)
    Py_CLEAR(call->device);
  return failed;
}

/* (key, addresses, device) */
static PyObject *told(const call_t *call) {
  PyObject *at = PyTuple_New(call->count), *result;
  for (Py_ssize_t i = 0; at != NULL && i < call->count; ++i) {
    PyObject *address = PyLong_FromUnsignedLongLong(call->at[i]);
    if (address == NULL)
      Py_CLEAR(at);
    else
      PyTuple_SET_ITEM(at, i, address);
  }
  result = at == NULL ? NULL : PyTuple_Pack(3, call->key, at, call->device);
  Py_XDECREF(at);
  return result;
}

/* read_tensors(state, head, tensors, operands): (key, addresses, device), or None where the call is for the long way.

   The key is (head, how all is stored, the operands' names, whether a graph is captured, settings). */
static PyObject *read_tensors(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  call_t call;
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "read_tensors takes a call");
    return NULL;
  }
  int failed = read_call(args, &call);
  if (failed > 0)
    Py_RETURN_NONE;
  PyObject *result = failed ? NULL : told(&call);
  if (!failed) {
    Py_DECREF(call.key);
    Py_DECREF(call.device);
  }
  return result;
}

/* What a call made before is launched by: see plan/programs.py. */
enum { NEW_RESULT, ORDER, CONSTANTS, LAUNCH, PROGRAM, MAPS, TALLY, QUICK };

/* The result of a call made before, whose result is new; Py_None, borrowed, where Python has to go on. */
static PyObject *launched_again(PyObject *state, const call_t *call, PyObject *quick) {
  const exchange_t *exchange = exchange_of(PyTuple_GET_ITEM(state, EXCHANGE));
  PyObject *order = PyTuple_GET_ITEM(quick, ORDER), *constants = PyTuple_GET_ITEM(quick, CONSTANTS);
  Py_ssize_t known = call->count + 2 + PyBytes_GET_SIZE(constants) / 8, wanted = PyBytes_GET_SIZE(order) / 8;
  uint64_t values[MOST_TENSORS + 2 + MOST_INPUTS], inputs[MOST_INPUTS], launch, stream;
  if (known > (Py_ssize_t)(sizeof values / sizeof *values) || wanted > MOST_INPUTS)
    return Py_None;
  PyObject *result = PyObject_CallNoArgs(PyTuple_GET_ITEM(quick, NEW_RESULT)), *handle;
  if (result == NULL)
    return NULL;
  tensor_t made;
  if (exchange == NULL || exchange->tensor_from(result, &made) || numbers(&PyTuple_GET_ITEM(quick, LAUNCH), 1, 1, &launch))
    goto failed;
  if ((handle = PyObject_CallOneArg(PyTuple_GET_ITEM(state, CURRENT_STREAM), call->device)) == NULL)
    goto failed;
  int odd = numbers(&handle, 1, 1, &stream);
  Py_DECREF(handle);
  if (odd)
    goto failed;
  memcpy(values, call->at, 8 * (size_t)call->count);
  values[call->count] = (uint64_t)(uintptr_t)made.data + made.byte_offset;
  values[call->count + 1] = 0; /* no scratch */
  memcpy(values + call->count + 2, PyBytes_AS_STRING(constants), (size_t)PyBytes_GET_SIZE(constants));
  const int64_t *places = (const int64_t *)PyBytes_AS_STRING(order);
  for (Py_ssize_t i = 0; i < wanted; ++i) {
    if (places[i] < 0 || places[i] >= known) {
      PyErr_SetString(PyExc_IndexError, "a place must be one of the call's");
      goto failed;
    }
    inputs[i] = values[places[i]];
  }
  uint64_t status = run((launch_t)(uintptr_t)launch, PyTuple_GET_ITEM(quick, PROGRAM), stream, inputs, (int64_t)wanted,
                        PyTuple_GET_ITEM(quick, MAPS));
  if (status == RAISED)
    goto failed;
  if (status) { /* a map is lacking, or the driver refuses, which Python sees to */
    Py_DECREF(result);
    return Py_None;
  }
  PyObject *tally = PyTuple_GET_ITEM(quick, TALLY), *more;
  more = PyLong_FromLongLong(PyLong_AsLongLong(PyList_GET_ITEM(tally, 0)) + 1);
  if (more == NULL || PyList_SetItem(tally, 0, more))
    goto failed;
  return result;
failed:
  Py_DECREF(result);
  return NULL;
}

/* repeat_call(state, head, tensors, operands, planner, known): the result where one program makes all of a call like one
   that ``planner`` knows, known(device) where that is None; else as read_tensors. */
static PyObject *repeat_call(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  static PyObject *repeated_name = NULL, *get_name = NULL, *quick_name = NULL;
  call_t call;
  if (count != 6) {
    PyErr_SetString(PyExc_TypeError, "repeat_call takes a call, a planner and a function");
    return NULL;
  }
  if (quick_name == NULL && ((repeated_name = PyUnicode_InternFromString("repeated")) == NULL ||
                             (get_name = PyUnicode_InternFromString("get")) == NULL ||
                             (quick_name = PyUnicode_InternFromString("quick")) == NULL))
    return NULL;
  int failed = read_call(args, &call);
  if (failed)
    return failed < 0 ? NULL : Py_NewRef(Py_None);
  PyObject *planner = args[4] == Py_None ? PyObject_CallOneArg(args[5], call.device) : Py_NewRef(args[4]);
  PyObject *table = NULL, *found = NULL, *quick = NULL, *result = planner == NULL ? NULL : Py_None;
  if (planner != NULL && planner != Py_None) {
    table = PyObject_GetAttr(planner, repeated_name);
    found = table == NULL ? NULL : PyObject_CallMethodOneArg(table, get_name, call.key);
    result = found == NULL ? NULL : Py_None;
    if (found != NULL && found != Py_None) {
      quick = PyObject_GetAttr(found, quick_name);
      if (quick == NULL)
        result = NULL;
      else if (PyTuple_CheckExact(quick) && PyTuple_GET_SIZE(quick) == QUICK)
        result = launched_again(args[0], &call, quick);
    }
  }
  if (result == Py_None)
    result = told(&call);
  Py_XDECREF(planner);
  Py_XDECREF(table);
  Py_XDECREF(found);
  Py_XDECREF(quick);
  Py_DECREF(call.key);
  Py_DECREF(call.device);
  return result;
}

static PyMethodDef methods[] = {
    {"launch_all", (PyCFunction)(void (*)(void))launch_all, METH_FASTCALL, NULL},
    {"run_program", (PyCFunction)(void (*)(void))run_program, METH_FASTCALL, NULL},
    {"order_of", (PyCFunction)(void (*)(void))order_of, METH_FASTCALL, NULL},
    {"read_tensors", (PyCFunction)(void (*)(void))read_tensors, METH_FASTCALL, NULL},
    {"repeat_call", (PyCFunction)(void (*)(void))repeat_call, METH_FASTCALL, NULL},
    {"gather", gather, METH_O, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "gemmdesc_host", NULL, -1, methods};
PyMODINIT_FUNC PyInit_gemmdesc_host(void) { return PyModule_Create(&module); }
