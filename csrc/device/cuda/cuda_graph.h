#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <memory>

#include "device/cuda/cuda_stream.h"

namespace torchshare {

/// A CUDA graph of what a job's thread launches into its stream. Other threads may go on allocating and launching
/// meanwhile (thread-local capture). It draws from the job's random engine, which moves on with each launch.
class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<CudaStream> stream, at::Generator engine);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;  // torch's graph is registered by address
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin_capture() override;
  void end_capture() override;
  void launch() override;

 private:
  const std::shared_ptr<CudaStream> stream_;
  const at::Generator engine_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace torchshare
