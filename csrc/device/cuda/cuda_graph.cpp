#include "device/cuda/cuda_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <stdexcept>
#include <utility>

#include "device/cuda/torch_version.h"
#include "device/generator_swap.h"

namespace torchshare {

CudaGraph::CudaGraph(std::shared_ptr<CudaStream> stream, at::Generator generator)
    : stream_(std::move(stream)), generator_(std::move(generator)), pool_(at::cuda::MemPool::graph_pool_handle()) {}

void CudaGraph::begin_capture() {
  if (stream_->is_on_part()) {
    throw std::logic_error("a graph must not be captured in a block of on_sms: it would keep its multiprocessors");
  }
  fresh_ = at::cuda::detail::createCUDAGenerator(generator_.device().index());  // torch makes none during a capture
  fresh_.set_current_seed(generator_.current_seed());
  fresh_.set_offset(generator_.get_offset());
  stream_->set_capturing(true);
  try {
    // torch registers the state of the default generator with the graph: it must be this job's state.
    const GeneratorSwap swap(generator_);
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  } catch (...) {
    if constexpr (!kGraphsEndFailedCaptures) {
      // torch's destructor throws if the generator was not registered before the capture failed: it is not run.
      (void)graph_.release();
    }
    clean_up();
    throw;
  }
}

void CudaGraph::end_capture() {
  try {
    graph_->capture_end();
  } catch (...) {
    clean_up();
    throw;
  }
  stream_->set_capturing(false);
}

void CudaGraph::clean_up() {
  stream_->abandon_capture();
  if constexpr (kGraphsEndFailedCaptures) {
    graph_.reset();
  } else {
    end_pool();
    generator_.graphsafe_set_state(fresh_);
  }
}

/// After a failed capture torch 2.11 keeps allocating device and host memory from the graph's pool, with a filter that
/// dies with the graph, and still treats the generator as captured.
void CudaGraph::end_pool() {
  const c10::DeviceIndex device = generator_.device().index();
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
  } catch (const c10::Error&) {
    // The capture failed before it began, or this has ended already.
  }
  try {
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    host->end_allocate_to_pool(pool_);
    host->release_pool(pool_);
  } catch (const c10::Error&) {
    // The same.
  }
}

void CudaGraph::launch() {
  graph_->replay();
}

}  // namespace torchshare
