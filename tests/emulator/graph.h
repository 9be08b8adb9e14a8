#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "stream.h"

namespace emulator {

/// A captured graph. Not changed after its capture ended.
struct Graph {
  struct Node {
    Work work;
    std::vector<std::size_t> after;  ///< nodes before this one
  };
  std::vector<Node> nodes;  ///< in the order of capture, which is a topological one

  /// before[b][a]: edges lead from node a to node b.
  std::vector<std::vector<bool>> order() const;
};

/// A capture that is under way: what its streams would have run becomes nodes of its graph.
/// (CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture".)
struct Capture {
  /// Guards every capture, `Stream::capture` and `Event::captured`.
  static std::mutex mutex;

  unsigned long long id = 0;
  cudaStreamCaptureMode mode{};
  std::thread::id thread;
  std::shared_ptr<Stream> origin;
  bool invalid = false;
  Graph graph;
  std::map<std::shared_ptr<Stream>, std::vector<std::size_t>> streams;  ///< each with its last nodes

  /// What cudaStreamGetCaptureInfo gave for a stream, valid until its next call for that stream. No call accepts the
  /// nodes yet.
  struct Shown {
    std::vector<cudaGraphNode_t> nodes;
    std::vector<cudaGraphEdgeData> edges;
  };
  std::map<std::shared_ptr<Stream>, Shown> shown;

  static cudaError_t begin(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode);
  static cudaError_t end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph);
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Completion> recorded = nullptr;  ///< null: never, or in a capture
  std::shared_ptr<Capture> captured = nullptr;     ///< in which it was last recorded
  std::vector<std::size_t> nodes = {};             ///< of that capture, before the recording
};

/// Enqueues the work, or adds it to the capture of the stream.
cudaError_t submit(const std::shared_ptr<Stream>& stream, Work work);

/// What a call that may conflict with captures does first: where the calling thread's mode forbids it, the captures
/// concerned become invalid (CUDA runtime API, cudaThreadExchangeStreamCaptureMode).
cudaError_t unsafe_in_capture();
/// What a call does that cannot be made for a stream while it is captured.
cudaError_t forbid_in_capture_of(const Stream& stream);
/// What a call does that uses the legacy stream: it would wait for the blocking streams that are captured.
cudaError_t use_legacy_stream();
bool is_captured(const Stream& stream);
/// Exchanges the calling thread's mode.
void exchange_mode(cudaStreamCaptureMode* mode);

cudaError_t record_event(Event& event, const std::shared_ptr<Stream>& stream);
cudaError_t await_event(Event& event, const std::shared_ptr<Stream>& stream);
/// What the host asks or waits for: null for an event that was never recorded.
cudaError_t completion_of(Event& event, std::shared_ptr<Completion>* completion);

cudaError_t launch_graph(const std::shared_ptr<const Graph>& graph, const std::shared_ptr<Stream>& stream);

}  // namespace emulator
