/* Stands in for libcuda in tests: notes what it is called with, in the fields of NVIDIA's own header.

   fake_number(i) gives what the last call left at place i; fake_fail(call, status) makes the next such call fail, and
   fake_fail_after(launches, status) the launch after so many. */
#include <cuda.h>
#include <stdint.h>
#include <string.h>

static uint64_t noted[64];
static unsigned char last_map[sizeof(CUtensorMap)];
static int failing_call = -1;
static CUresult failing_status;
static uint64_t context = 77;
static int launches_left = -1;

enum { LAUNCH = 0, ENCODE = 1, CONTEXT = 2 };

static CUresult outcome(int call) {
  if (call != failing_call)
    return CUDA_SUCCESS;
  failing_call = -1;
  return failing_status;
}

void fake_fail(int call, int status) {
  failing_call = call;
  failing_status = (CUresult)status;
}

void fake_fail_after(int launches, int status) {
  launches_left = launches;
  failing_status = (CUresult)status;
}

uint64_t fake_number(int place) { return noted[place]; }

void fake_context(uint64_t value) { context = value; }

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal + 40;
  return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) {
  *found = (CUcontext)(uint64_t)(device + 37);
  ++noted[59];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found) {
  *found = (CUcontext)context;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext wanted) {
  CUresult result = outcome(CONTEXT);
  if (result == CUDA_SUCCESS)
    context = (uint64_t)wanted;
  return result;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (context == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  noted[60] = (uint64_t)function;
  noted[61] = attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
  noted[62] = value;
  return CUDA_SUCCESS;
}

/* Streams with odd handles are being captured, and stream 13 is refused. */
#undef cuStreamGetCaptureInfo_v2
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count) {
  *status = (uint64_t)stream % 2 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *id = 500 + (uint64_t)stream;
  return (uint64_t)stream == 13 || graph || dependencies || count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *number) {
  *number = (1ULL << 40) + (uint64_t)stream;
  return (uint64_t)stream == 13 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  uint64_t told[4] = {address, value, count, (uint64_t)stream};
  memcpy(&noted[0], told, sizeof told);
  return (uint64_t)stream == 13 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult status, const char **name) {
  static const char *names[2] = {"CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_CONTEXT"};
  if (status != CUDA_ERROR_INVALID_VALUE && status != CUDA_ERROR_INVALID_CONTEXT)
    return CUDA_ERROR_INVALID_VALUE;
  *name = names[status == CUDA_ERROR_INVALID_CONTEXT];
  return CUDA_SUCCESS;
}

/* Parameters 0 .. 3 as words, then the tensor map behind parameter 4, if noted[40] says that there is one. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  if (context != 77)
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = outcome(LAUNCH);
  if (launches_left >= 0 && launches_left-- == 0)
    return failing_status;
  if (result != CUDA_SUCCESS)
    return result;
  noted[0] = config->gridDimX;
  noted[1] = config->gridDimY;
  noted[2] = config->gridDimZ;
  noted[3] = config->blockDimX;
  noted[4] = config->blockDimY;
  noted[5] = config->blockDimZ;
  noted[6] = config->sharedMemBytes;
  noted[7] = (uint64_t)config->hStream;
  noted[8] = config->numAttrs;
  noted[9] = (uint64_t)function;
  noted[10] = extra == NULL;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    noted[20 + i] = config->attrs[i].id;
    noted[30 + i] = config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                        ? config->attrs[i].value.clusterDim.x * 10000 + config->attrs[i].value.clusterDim.y * 100 +
                              config->attrs[i].value.clusterDim.z
                        : (uint64_t)config->attrs[i].value.cooperative;
  }
  for (int i = 0; i < 4; ++i)
    memcpy(&noted[50 + i], parameters[i], 8);
  ++noted[63];
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (context == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = outcome(ENCODE);
  if (result != CUDA_SUCCESS)
    return result;
  if ((uintptr_t)map % _Alignof(CUtensorMap) || (uintptr_t)address % 16 || rank != 2)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t told[14] = {type, (uint64_t)address, sizes[0], sizes[1], strides[0], box[0], box[1], steps[0], steps[1],
                       interleave == CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                       promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B, fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                       type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
  memcpy(&noted[0], told, sizeof told);
  memset(last_map, 0xff, sizeof last_map);
  memcpy(map, last_map, sizeof last_map);
  return CUDA_SUCCESS;
}
