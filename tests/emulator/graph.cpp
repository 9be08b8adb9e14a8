#include "graph.h"

#include <algorithm>

namespace emulator {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Guarded by Capture::mutex.
std::set<std::shared_ptr<Capture>>& captures() {
  static auto* const all = new std::set<std::shared_ptr<Capture>>;
  return *all;
}

void add_once(std::vector<std::size_t>& nodes, const std::vector<std::size_t>& more) {
  for (const std::size_t node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
      nodes.push_back(node);
    }
  }
}

/// Whether every node of the other streams precedes a last node of the origin.
bool joined(const Capture& capture) {
  std::set<std::size_t> reached;
  std::vector<std::size_t> left = capture.streams.at(capture.origin);
  while (!left.empty()) {
    const std::size_t node = left.back();
    left.pop_back();
    if (reached.insert(node).second) {
      const auto& after = capture.graph.nodes[node].after;
      left.insert(left.end(), after.begin(), after.end());
    }
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const auto& stream) {
    return std::all_of(stream.second.begin(), stream.second.end(), [&](auto node) { return reached.contains(node); });
  });
}

}  // namespace

std::mutex Capture::mutex;

std::vector<std::vector<bool>> Graph::order() const {
  std::vector<std::vector<bool>> before(nodes.size(), std::vector<bool>(nodes.size()));
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const std::size_t direct : nodes[node].after) {
      before[node][direct] = true;
      for (std::size_t a = 0; a < direct; ++a) {
        before[node][a] = before[node][a] || before[direct][a];
      }
    }
  }
  return before;
}

cudaError_t Capture::begin(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode) {
  if (stream->is_legacy()) {
    return cudaErrorStreamCaptureUnsupported;
  }
  std::lock_guard lock(mutex);
  if (stream->capture) {
    return cudaErrorIllegalState;
  }
  static unsigned long long last = 0;
  const auto capture = std::make_shared<Capture>();
  capture->id = ++last;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->streams[stream] = {};
  stream->capture = capture;
  captures().insert(capture);
  return cudaSuccess;
}

cudaError_t Capture::end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph) {
  std::lock_guard lock(mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) {
    return cudaErrorIllegalState;
  }
  if (capture->origin != stream) {
    return cudaErrorStreamCaptureUnmatched;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    capture->invalid = true;
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool all_joined = joined(*capture);
  for (const auto& member : capture->streams) {
    member.first->capture = nullptr;
  }
  captures().erase(capture);
  if (capture->invalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  if (!all_joined) {
    return cudaErrorStreamCaptureUnjoined;
  }
  *graph = std::make_shared<Graph>(std::move(capture->graph));
  return cudaSuccess;
}

cudaError_t submit(const std::shared_ptr<Stream>& stream, Work work) {
  {
    std::lock_guard lock(Capture::mutex);
    if (const auto& capture = stream->capture) {
      if (capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
      }
      std::vector<std::size_t>& last = capture->streams.at(stream);
      capture->graph.nodes.push_back({std::move(work), last});
      last = {capture->graph.nodes.size() - 1};
      return cudaSuccess;
    }
  }
  stream->enqueue(std::move(work));
  return cudaSuccess;
}

cudaError_t unsafe_in_capture() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) {
    return cudaSuccess;
  }
  std::lock_guard lock(Capture::mutex);
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures()) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool global = thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (own || global) {
      capture->invalid = true;
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

cudaError_t forbid_in_capture_of(const Stream& stream) {
  std::lock_guard lock(Capture::mutex);
  if (!stream.capture) {
    return cudaSuccess;
  }
  stream.capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t use_legacy_stream() {
  std::lock_guard lock(Capture::mutex);
  for (const auto& capture : captures()) {
    for (const auto& member : capture->streams) {
      if (member.first->blocking()) {
        capture->invalid = true;
        return cudaErrorStreamCaptureImplicit;
      }
    }
  }
  return cudaSuccess;
}

bool is_captured(const Stream& stream) {
  std::lock_guard lock(Capture::mutex);
  return stream.capture != nullptr;
}

void exchange_mode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
}

cudaError_t record_event(Event& event, const std::shared_ptr<Stream>& stream) {
  auto completion = std::make_shared<Completion>();
  {
    std::lock_guard lock(Capture::mutex);
    event.captured = stream->capture;
    if (event.captured) {
      event.recorded = nullptr;
      event.nodes = event.captured->streams.at(stream);
      return event.captured->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    event.recorded = completion;
  }
  stream->enqueue({.name = "event record", .completes = std::move(completion)});
  return cudaSuccess;
}

cudaError_t await_event(Event& event, const std::shared_ptr<Stream>& stream) {
  std::shared_ptr<Completion> recorded;
  {
    std::lock_guard lock(Capture::mutex);
    if (const auto& capture = event.captured) {
      if (!captures().contains(capture)) {
        return cudaErrorCapturedEvent;  // that capture has ended
      }
      if (stream->is_legacy()) {  // it cannot be captured
        capture->invalid = true;
        return cudaErrorStreamCaptureImplicit;
      }
      if (!stream->capture) {
        stream->capture = capture;
      } else if (stream->capture != capture) {
        stream->capture->invalid = true;
        capture->invalid = true;
        return cudaErrorStreamCaptureMerge;
      }
      add_once(capture->streams[stream], event.nodes);
      return cudaSuccess;
    }
    if (stream->capture) {
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    recorded = event.recorded;
  }
  if (recorded) {
    stream->enqueue({.name = "event wait", .awaits = std::move(recorded)});
  }
  return cudaSuccess;
}

cudaError_t completion_of(Event& event, std::shared_ptr<Completion>* completion) {
  std::lock_guard lock(Capture::mutex);
  if (event.captured) {
    event.captured->invalid = true;
    return cudaErrorCapturedEvent;
  }
  *completion = event.recorded;
  return cudaSuccess;
}

cudaError_t launch_graph(const std::shared_ptr<const Graph>& graph, const std::shared_ptr<Stream>& stream) {
  Work launch{.name = "graph launch"};
  for (const Graph::Node& node : graph->nodes) {
    launch.accesses.insert(launch.accesses.end(), node.work.accesses.begin(), node.work.accesses.end());
  }
  launch.run = [graph, device = stream->device(), priority = stream->priority()] {
    for (const Graph::Node& node : graph->nodes) {
      execute(node.work, device, priority, std::nullopt, [] {});
    }
  };
  return submit(stream, std::move(launch));
}

}  // namespace emulator
