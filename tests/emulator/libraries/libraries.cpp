/// cuBLAS, cuBLASLt and cuDNN as torch calls them on its way to a kernel: handles that hold their stream, descriptors,
/// and functions that launch a hollow kernel of their name. Declared without NVIDIA's headers: a hollow function takes
/// its handle only, and the caller cleans up the rest (the x86-64 calling convention).
/// Everything else that torch links is a stand-in that aborts: see generate.py.

#include <cstddef>
#include <cstdint>

#include "emulator.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

struct Handle {
  void* stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;
};

/// Descriptors are only passed back.
struct Descriptor {};

/// cublasLtMatmulHeuristicResult_t.
struct MatmulHeuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

int set(void** slot, void* value) {
  *slot = value;
  return 0;
}

}  // namespace

API int cublasCreate_v2(void** handle) {
  return set(handle, new Handle);
}
API int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return 0;
}
API int cublasSetStream_v2(Handle* handle, void* stream) {
  return set(&handle->stream, stream);
}
API int cublasSetWorkspace_v2(Handle*, void*, size_t) {
  return 0;
}
API int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return 0;
}
API int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return 0;
}
API int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return 0;
}
API int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return 0;
}

#define DESCRIPTOR(name)                                              \
  API int name##Create(void** descriptor) {                           \
    return set(descriptor, new Descriptor);                           \
  }                                                                   \
  API int name##SetAttribute(Descriptor*, int, const void*, size_t) { \
    return 0;                                                         \
  }                                                                   \
  API int name##Destroy(Descriptor* descriptor) {                     \
    delete descriptor;                                                \
    return 0;                                                         \
  }
DESCRIPTOR(cublasLtMatmulDesc)
DESCRIPTOR(cublasLtMatmulPreference)
DESCRIPTOR(cublasLtMatrixLayout)
#undef DESCRIPTOR

API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, MatmulHeuristic* results,
                                       int* found) {
  results[0] = {};
  *found = 1;
  return 0;
}
API int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                       void*, void*, void*, const void*, void*, size_t, void* stream) {
  return emulator_launch_hollow(stream, "cublasLtMatmul") == 0 ? 0 : 13;  // CUBLAS_STATUS_EXECUTION_FAILED
}

API int cudnnCreate(void** handle) {
  return set(handle, new Handle);
}
API int cudnnDestroy(Handle* handle) {
  delete handle;
  return 0;
}
API int cudnnSetStream(Handle* handle, void* stream) {
  return set(&handle->stream, stream);
}
API int cudnnGetStream(Handle* handle, void** stream) {
  return set(stream, handle->stream);
}

#define HOLLOW(name)                                                    \
  API int name(Handle* handle) {                                        \
    return emulator_launch_hollow(handle->stream, #name) == 0 ? 0 : 13; \
  }
#define HOLLOW_OF_EACH_TYPE(name, suffix) \
  HOLLOW(cublasS##name##suffix)           \
  HOLLOW(cublasD##name##suffix)           \
  HOLLOW(cublasC##name##suffix)           \
  HOLLOW(cublasZ##name##suffix)
HOLLOW_OF_EACH_TYPE(gemm, _v2)
HOLLOW_OF_EACH_TYPE(gemmStridedBatched, )
HOLLOW_OF_EACH_TYPE(gemv, _v2)
HOLLOW_OF_EACH_TYPE(trsm, _v2)
HOLLOW_OF_EACH_TYPE(trsmBatched, )
HOLLOW(cublasSdot_v2)
HOLLOW(cublasDdot_v2)
HOLLOW(cublasCdotc_v2)
HOLLOW(cublasCdotu_v2)
HOLLOW(cublasZdotc_v2)
HOLLOW(cublasZdotu_v2)
HOLLOW(cublasDotEx)
HOLLOW(cublasGemmEx)
HOLLOW(cublasGemmStridedBatchedEx)
HOLLOW(cublasSgemmEx)
