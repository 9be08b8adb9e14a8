#include "device/cuda/cuda_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/driver.h"

namespace torchshare {
namespace {

struct KeptStreams {
  std::mutex mutex;  // guards every field below
  std::vector<std::unique_ptr<OwnStream>> streams;
};

KeptStreams& kept() {
  static KeptStreams* const all = new KeptStreams;  // the driver may be gone before static objects are
  return *all;
}

/// Creates a stream that uses at most `sms` streaming multiprocessors, in a green context that lives as long as the
/// process. Returns how many the driver granted.
int make_green_stream(const StreamKind& kind, cudaStream_t* stream) {
  const Driver& driver = Driver::get();
  CUdevice device = 0;
  driver.check(driver.device_get(&device, kind.device), "cuDeviceGet");
  CUdevResource all{};
  driver.check(driver.device_get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  CUdevResource part{};
  CUdevResource rest{};
  unsigned int groups = 1;
  driver.check(driver.split_sms(&part, &groups, &all, &rest, 0, static_cast<unsigned int>(*kind.sms)),
               "cuDevSmResourceSplitByCount");
  TORCH_CHECK_VALUE(groups == 1, "sms must be from 1 to ", all.sm.smCount, ", the number of this GPU, got ", *kind.sms);
  CUdevResourceDesc description = nullptr;
  driver.check(driver.describe_resource(&description, &part, 1), "cuDevResourceGenerateDesc");
  CUgreenCtx context = nullptr;
  driver.check(driver.green_context_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
               "cuGreenCtxCreate");
  driver.check(driver.green_context_stream_create(stream, context, CU_STREAM_NON_BLOCKING, kind.priority),
               "cuGreenCtxStreamCreate");
  return static_cast<int>(part.sm.smCount);
}

}  // namespace

std::unique_ptr<OwnStream> OwnStream::take(const StreamKind& kind) {
  {
    std::lock_guard lock(kept().mutex);
    auto& streams = kept().streams;
    const auto found = std::find_if(streams.begin(), streams.end(), [&](const auto& own) { return own->kind == kind; });
    if (found != streams.end()) {
      auto stream = std::move(*found);
      streams.erase(found);
      return stream;
    }
  }
  const c10::cuda::CUDAGuard guard(kind.device);
  auto own = std::make_unique<OwnStream>(OwnStream{.kind = kind, .handle = nullptr, .sms = {}, .markers = nullptr});
  if (kind.sms) {
    own->sms = make_green_stream(kind, &own->handle);
  } else {
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&own->handle, cudaStreamNonBlocking, kind.priority));
  }
  own->markers = make_written_markers(own->handle);
  return own;
}

void OwnStream::give_back(std::unique_ptr<OwnStream> stream) {
  std::lock_guard lock(kept().mutex);
  kept().streams.push_back(std::move(stream));
}

CudaStream::CudaStream(const StreamKind& kind)
    : main_([&] {
        add(kind);
        return members_.front().stream->handle;
      }()) {
  sms_ = members_.front().stream->sms;
}

CudaStream::~CudaStream() {
  cudaError_t error = cudaSuccess;
  const auto keep_first = [&](cudaError_t result) { error = error == cudaSuccess ? result : error; };
  for (Member& member : members_) {
    keep_first(cudaStreamSynchronize(member.stream->handle));
    OwnStream::give_back(std::move(member.stream));
  }
  for (const cudaEvent_t event : events_) {
    keep_first(cudaEventDestroy(event));
  }
  C10_CUDA_CHECK_WARN(error);  // once: of a lost device, thousands of events say the same
}

void CudaStream::add(const StreamKind& kind) {
  auto stream = OwnStream::take(kind);
  std::lock_guard lock(mutex_);
  const std::uint64_t offset = stream->marked - latest_;
  members_.push_back({std::move(stream), offset});
}

c10::cuda::CUDAStream CudaStream::torchs() const {
  std::lock_guard lock(mutex_);
  return c10::cuda::getStreamFromExternal(main_, members_.front().stream->kind.device);
}

cudaStream_t CudaStream::open() {
  if (is_capturing()) {
    return nullptr;
  }
  const std::size_t index = 1 + opened_++ % kMaxOpen;  // the first is the job's own
  std::unique_lock lock(mutex_);
  if (index == members_.size()) {
    const StreamKind kind = members_.front().stream->kind;
    lock.unlock();
    add(kind);
    lock.lock();
  }
  return members_[index].stream->handle;
}

void CudaStream::set_capturing(bool capturing) {
  std::lock_guard lock(mutex_);
  capturing_ = capturing;
}

/// A stream that still captures after its capture failed to end would fail the other jobs' markers.
void CudaStream::abandon_capture() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(main_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(main_, &graph) == cudaSuccess && graph != nullptr) {
      cudaGraphDestroy(graph);
    }
  }
  cudaGetLastError();  // the capture's own error is reported already
  set_capturing(false);
}

DeviceStream::Marker CudaStream::record_marker() {
  std::lock_guard lock(mutex_);
  if (capturing_) {
    return 0;
  }
  ++latest_;
  for (Member& member : members_) {
    member.stream->markers->record(++member.stream->marked);
  }
  return latest_;
}

DeviceStream::Marker CudaStream::passed() const {
  std::lock_guard lock(mutex_);
  Marker passed = latest_;
  for (const Member& member : members_) {
    passed = std::min(passed, member.stream->markers->passed() - member.offset);
  }
  return passed;
}

void CudaStream::check() const {
  std::lock_guard lock(mutex_);
  if (!capturing_) {  // a query would invalidate the capture
    (void)is_done(cudaStreamQuery(main_));
  }
}

bool CudaStream::is_capturing() const {
  std::lock_guard lock(mutex_);
  return capturing_;
}

DeviceStream::Stamp CudaStream::stamp() {
  if (is_capturing()) {
    return 0;
  }
  const std::size_t index = ++last_stamp_ % kStamps;
  while (events_.size() <= index) {
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreate(&event));
    events_.push_back(event);
  }
  C10_CUDA_CHECK(cudaEventRecord(events_[index], main_));
  return last_stamp_;
}

std::optional<std::chrono::nanoseconds> CudaStream::between(Stamp from, Stamp to) {
  // Querying an event on a capturing thread would invalidate the capture.
  if (last_stamp_ - from >= kStamps || is_capturing()) {
    return std::nullopt;
  }
  const cudaEvent_t end = events_[to % kStamps];
  if (!is_done(cudaEventQuery(end))) {
    return std::nullopt;
  }
  float ms = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[from % kStamps], end));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(1e6 * static_cast<double>(ms)));
}

std::unique_ptr<ThreadScope> CudaStream::use() {
  struct OnStream final : ThreadScope {
    explicit OnStream(const c10::cuda::CUDAStream& stream) : guard(stream) {}
    const c10::cuda::CUDAStreamGuard guard;
  };
  return std::make_unique<OnStream>(torchs());
}

void CudaStream::synchronize() {
  std::vector<cudaStream_t> streams;
  {
    std::lock_guard lock(mutex_);
    for (const Member& member : members_) {
      streams.push_back(member.stream->handle);
    }
  }
  for (const cudaStream_t stream : streams) {
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
}

}  // namespace torchshare
