#include "device/cuda/cuda_graph.h"

#include <utility>

#include "device/engine_swap.h"

namespace torchshare {

CudaGraph::CudaGraph(std::shared_ptr<CudaStream> stream, at::Generator engine)
    : stream_(std::move(stream)), engine_(std::move(engine)) {}

CudaGraph::~CudaGraph() {
  stream_->set_capturing(false);
}

void CudaGraph::begin_capture() {
  stream_->set_capturing(true);
  // torch registers the default engine's state with the graph: it must be this job's while it does.
  const EngineSwap swap(engine_);
  graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
}

void CudaGraph::end_capture() {
  graph_.capture_end();
  stream_->set_capturing(false);
}

void CudaGraph::launch() {
  graph_.replay();
}

}  // namespace torchshare
