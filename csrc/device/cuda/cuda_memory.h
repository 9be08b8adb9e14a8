#pragma once

#include <c10/core/Device.h>

namespace torchshare {

/// Wraps torch's CUDA allocator in ours. Once per process; further calls do nothing. See Note [Owned memory].
void install_cuda_memory();

/// Counts a job that runs on the GPU, until the destructor.
class CudaMemoryUser {
 public:
  explicit CudaMemoryUser(c10::DeviceIndex device);
  ~CudaMemoryUser();
  CudaMemoryUser(const CudaMemoryUser&) = delete;  // counted
  CudaMemoryUser& operator=(const CudaMemoryUser&) = delete;

 private:
  const c10::DeviceIndex device_;
};

}  // namespace torchshare
