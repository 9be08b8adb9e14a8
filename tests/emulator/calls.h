#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "graph.h"

/// A function that takes the place of the CUDA runtime's or driver's.
#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

/// Counts the call. Returns the error that a test injected, that the device was lost by, or that any CUDA call has in a
/// forked child (initialization error) or in a host function (not permitted).
cudaError_t enter(const char* call);
/// The same for a call that does not touch the device: a lost one does not matter to it.
cudaError_t enter_without_device(const char* call);
/// Remembers the error for cudaGetLastError, and prints it if EMULATOR_TRACE is set.
cudaError_t leave(const char* call, cudaError_t error);
inline bool is_device(int device) {
  return device >= 0 && device < Settings::get().devices;
}
/// The calling thread's last error.
cudaError_t& last_error();

template <class Body>
cudaError_t call(const char* name, const Body& body) {
  const cudaError_t error = enter(name);
  return leave(name, error != cudaSuccess ? error : body());
}

/// A call that a capture may forbid.
template <class Body>
cudaError_t unsafe_call(const char* name, const Body& body) {
  return call(name, [&] {
    const cudaError_t error = unsafe_in_capture();
    return error != cudaSuccess ? error : body();
  });
}

/// A call that gets a stream: `body(stream)`.
template <class Body>
cudaError_t stream_call(const char* name, cudaStream_t handle, const Body& body) {
  return call(name, [&] {
    const std::shared_ptr<Stream> stream = Stream::of(handle);
    return stream ? body(stream) : cudaErrorInvalidResourceHandle;
  });
}

/// A launch: "a kernel launch will fail if it is issued to a stream that is not associated to the current device" (CUDA
/// C++ Programming Guide, "Stream and Event Behavior").
template <class Body>
cudaError_t launch_call(cudaStream_t handle, const Body& body) {
  return stream_call("cudaLaunchKernel", handle, [&](const std::shared_ptr<Stream>& stream) {
    return stream->device() == current_device() ? body(stream) : cudaErrorInvalidResourceHandle;
  });
}

/// A driver call: its errors have the runtime's numbers and are not remembered.
template <class Body>
CUresult driver_call(const char* name, const Body& body) {
  const cudaError_t error = enter(name);
  return error != cudaSuccess ? static_cast<CUresult>(error) : body();
}

/// While this lives, CUDA calls of this thread are not permitted (cudaLaunchHostFunc: "The host function must not make
/// any CUDA API calls").
class HostFunction {
 public:
  HostFunction();
  ~HostFunction();
  HostFunction(const HostFunction&) = delete;
};

/// Loads the numerics from the emulator's folder, once torch has asked for the device.
void load_numerics();

}  // namespace emulator
