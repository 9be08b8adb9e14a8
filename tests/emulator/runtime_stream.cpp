// The CUDA runtime's calls about streams, events, captures and graphs. docs.nvidia.com/cuda/cuda-runtime-api
#include "calls.h"

using namespace emulator;

namespace {

Event& event_of(cudaEvent_t handle) {
  return *reinterpret_cast<Event*>(handle);
}

/// What a handle of a graph, or of an executable one, points to.
struct GraphHandle {
  std::shared_ptr<const Graph> graph;
};
template <class Handle>
GraphHandle& graph_of(Handle handle) {
  return *reinterpret_cast<GraphHandle*>(handle);
}

[[noreturn]] void abort_unsupported(const char* what) {
  std::fprintf(stderr, "emulator: %s is not emulated; see tests/emulator/README.md\n", what);
  std::abort();
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority) {
  if ((flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
    return cudaErrorInvalidValue;
  }
  *stream = Stream::create(current_device(), priority, flags)->handle();
  return cudaSuccess;
}

cudaError_t lost() {
  return static_cast<cudaError_t>(lost_by());
}

/// A call that cannot be made for a stream while it is captured.
template <class Body>
cudaError_t uncaptured_call(const char* name, cudaStream_t handle, const Body& body) {
  return stream_call(name, handle, [&](const auto& stream) {
    cudaError_t error = forbid_in_capture_of(*stream);
    if (error == cudaSuccess) {
      error = unsafe_in_capture();
    }
    return error == cudaSuccess ? body(*stream) : error;
  });
}

}  // namespace

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call(__func__, [&] { return create_stream(stream, flags, priority); });
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call(__func__, [&] { return create_stream(stream, flags, kLowestPriority); });
}

API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call(__func__, [&] { return create_stream(stream, cudaStreamDefault, kLowestPriority); });
}

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return stream_call(__func__, handle, [](const auto& stream) {
    if (stream->is_legacy()) {
      return cudaErrorInvalidResourceHandle;
    }
    stream->destroy();
    return cudaSuccess;
  });
}

API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    *priority = stream->priority();
    return cudaSuccess;
  });
}

API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    *flags = stream->flags();
    return cudaSuccess;
  });
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return uncaptured_call(__func__, handle, [](Stream& stream) { return stream.query() ? lost() : cudaErrorNotReady; });
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return uncaptured_call(__func__, handle, [](Stream& stream) {
    stream.synchronize();
    return lost();
  });
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  if ((flags & cudaEventWaitExternal) != 0) {
    abort_unsupported("cudaStreamWaitEvent with cudaEventWaitExternal");
  }
  return stream_call(__func__, handle, [&](const auto& stream) { return await_event(event_of(event), stream); });
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    return submit(stream, {.name = "host function", .run = [=] {
                             const HostFunction inside;
                             function(data);
                           }});
  });
}

API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    return submit(stream, {.name = "callback", .run = [=] {
                             const HostFunction inside;
                             function(handle, cudaSuccess, data);
                           }});
  });
}

// ---- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call(__func__, [&] {
    *event = reinterpret_cast<cudaEvent_t>(new Event{.device = current_device(), .flags = flags});
    return cudaSuccess;
  });
}

API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call(__func__, [&] {
    *event = reinterpret_cast<cudaEvent_t>(new Event{.device = current_device()});
    return cudaSuccess;
  });
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(__func__, [&] {
    delete &event_of(event);
    return cudaSuccess;
  });
}

namespace {

/// "cudaErrorInvalidResourceHandle: event and stream must be on the same device."
cudaError_t record(const char* name, cudaEvent_t event, cudaStream_t handle) {
  return stream_call(name, handle, [&](const auto& stream) {
    return event_of(event).device == stream->device() ? record_event(event_of(event), stream)
                                                      : cudaErrorInvalidResourceHandle;
  });
}

}  // namespace

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  if ((flags & cudaEventRecordExternal) != 0) {
    abort_unsupported("cudaEventRecordWithFlags with cudaEventRecordExternal");
  }
  return record(__func__, event, handle);
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return record(__func__, event, handle);
}

namespace {

void join_host(const Completion& completion) {
  std::lock_guard order(RaceCheck::get().mutex);
  RaceCheck::get().host.join(completion.clock);
}

}  // namespace

API cudaError_t cudaEventQuery(cudaEvent_t event) {
  return unsafe_call(__func__, [&] {
    std::shared_ptr<Completion> recorded;
    const cudaError_t error = completion_of(event_of(event), &recorded);
    if (error != cudaSuccess || !recorded) {
      return error;
    }
    if (!recorded->done()) {
      return cudaErrorNotReady;
    }
    join_host(*recorded);
    return lost();
  });
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return unsafe_call(__func__, [&] {
    std::shared_ptr<Completion> recorded;
    const cudaError_t error = completion_of(event_of(event), &recorded);
    if (error != cudaSuccess || !recorded) {
      return error;
    }
    recorded->wait();
    join_host(*recorded);
    return lost();
  });
}

API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return call(__func__, [&] {
    std::shared_ptr<Completion> begin;
    std::shared_ptr<Completion> end;
    for (const auto& [event, completion] : {std::pair(from, &begin), std::pair(to, &end)}) {
      if ((event_of(event).flags & cudaEventDisableTiming) != 0) {
        return cudaErrorInvalidResourceHandle;
      }
      if (const auto error = completion_of(event_of(event), completion); error != cudaSuccess) {
        return error;
      }
      if (!*completion || event_of(from).device != event_of(to).device) {
        return cudaErrorInvalidResourceHandle;
      }
      if (!(*completion)->done()) {
        return cudaErrorNotReady;
      }
    }
    *ms = std::chrono::duration<float, std::milli>(end->at() - begin->at()).count();
    return lost();
  });
}

// ---- captures and graphs

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  exchange_mode(mode);
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return stream_call(__func__, handle, [&](const auto& stream) { return Capture::begin(stream, mode); });
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  return stream_call(__func__, handle, [&](const auto& stream) {
    std::shared_ptr<Graph> captured;
    const cudaError_t error = Capture::end(stream, &captured);
    if (error == cudaSuccess) {
      *graph = reinterpret_cast<cudaGraph_t>(new GraphHandle{std::move(captured)});
    }
    return error;
  });
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    if (stream->is_legacy()) {
      if (const auto error = use_legacy_stream(); error != cudaSuccess) {
        return error;
      }
    }
    std::lock_guard lock(Capture::mutex);
    const auto& capture = stream->capture;
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                         const cudaGraphEdgeData** edges, std::size_t* count) {
  if (const auto error = cudaStreamIsCapturing(handle, status); error != cudaSuccess) {
    return error;
  }
  return stream_call(__func__, handle, [&](const auto& stream) {
    std::lock_guard lock(Capture::mutex);
    if (!stream->capture) {
      return cudaSuccess;
    }
    const auto give = [](auto* to, auto value) {
      if (to != nullptr) {
        *to = value;
      }
    };
    const std::vector<std::size_t>& last = stream->capture->streams.at(stream);
    Capture::Shown& shown = stream->capture->shown[stream];
    shown = {{}, std::vector<cudaGraphEdgeData>(last.size())};
    for (const std::size_t node : last) {
      shown.nodes.push_back(reinterpret_cast<cudaGraphNode_t>(node + 1));
    }
    give(id, stream->capture->id);
    give(graph, reinterpret_cast<cudaGraph_t>(stream->capture.get()));  // names the capture; no call accepts it yet
    give(dependencies, shown.nodes.data());
    give(edges, shown.edges.data());
    give(count, last.size());
    return cudaSuccess;
  });
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call(__func__, [&] {
    const auto& captured = graph_of(graph).graph;
    std::vector<std::vector<Access>> nodes;
    for (const Graph::Node& node : captured->nodes) {
      nodes.push_back(node.work.accesses);
    }
    RaceCheck::get().check_graph(nodes, captured->order());
    *executable = reinterpret_cast<cudaGraphExec_t>(new GraphHandle{captured});
    return cudaSuccess;
  });
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return stream_call(__func__, handle,
                     [&](const auto& stream) { return launch_graph(graph_of(executable).graph, stream); });
}

/// "The topologies must match"; what differs is taken over by launches from now on.
API cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                    cudaGraphExecUpdateResultInfo* info) {
  return call(__func__, [&] {
    const auto& to = graph_of(graph).graph->nodes;
    const auto& from = graph_of(executable).graph->nodes;
    bool same = to.size() == from.size();
    for (std::size_t node = 0; same && node < to.size(); ++node) {
      same = to[node].after == from[node].after && to[node].work.takes_slot == from[node].work.takes_slot;
    }
    info->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (same) {
      graph_of(executable).graph = graph_of(graph).graph;
    }
    return same ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
  });
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call(__func__, [&] {
    delete &graph_of(graph);
    return cudaSuccess;
  });
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call(__func__, [&] {
    delete &graph_of(executable);
    return cudaSuccess;
  });
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) {
    abort_unsupported("cudaGraphGetNodes with nodes");
  }
  *count = graph_of(graph).graph->nodes.size();
  return cudaSuccess;
}

API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return cudaSuccess;
}
