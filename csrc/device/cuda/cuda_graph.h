#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <memory>

#include "device/cuda/cuda_stream.h"

namespace torchshare {

/// A CUDA graph of what a job's thread launches into its stream. Other threads may allocate and launch during the
/// capture (thread-local mode). It draws from the job's generator, which advances with each launch.
class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<CudaStream> stream, at::Generator generator);
  CudaGraph(const CudaGraph&) = delete;  // torch's graph is registered by address
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin_capture() override;
  void end_capture() override;
  void launch() override;

 private:
  void clean_up();
  void end_pool();

  const std::shared_ptr<CudaStream> stream_;
  at::Generator generator_;
  const c10::MempoolId_t pool_;
  at::Generator fresh_;  // as generator_ was before the capture
  std::unique_ptr<at::cuda::CUDAGraph> graph_ = std::make_unique<at::cuda::CUDAGraph>();
};

}  // namespace torchshare
