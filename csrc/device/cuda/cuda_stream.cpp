#include "device/cuda/cuda_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/driver.h"
#include "device/cuda/torch_version.h"

namespace torchshare {
namespace {

struct KeptStreams {
  std::mutex mutex;  // guards every field below
  std::vector<std::unique_ptr<MarkedStream>> streams;
};

KeptStreams& kept() {
  static KeptStreams* const all = new KeptStreams;  // the driver may be gone before static objects are
  return *all;
}

/// Null if no stream that is kept is such a one.
template <class IsOne>
std::unique_ptr<MarkedStream> take_kept(IsOne is_one) {
  std::lock_guard lock(kept().mutex);
  auto& streams = kept().streams;
  const auto found = std::find_if(streams.begin(), streams.end(), [&](const auto& each) { return is_one(*each); });
  if (found == streams.end()) {
    return nullptr;
  }
  auto stream = std::move(*found);
  streams.erase(found);
  return stream;
}

/// False for a stream that whoever owns it may have destroyed: the driver must not be asked about it.
bool is_lasting(const MarkedStream& stream) {
  return stream.is_ours || stream.handle == LegacyStream::kHandle;
}

/// A handle that no stream has.
cudaStream_t no_stream() {
  return reinterpret_cast<cudaStream_t>(~std::uintptr_t{0});
}

}  // namespace

std::unique_ptr<MarkedStream> MarkedStream::take(const StreamKind& kind) {
  auto kept_one = take_kept([&](const MarkedStream& each) { return each.is_ours && each.kind == kind; });
  if (kept_one != nullptr) {
    return kept_one;
  }
  const c10::cuda::CUDAGuard guard(kind.device);
  auto own = std::make_unique<MarkedStream>(
      MarkedStream{.kind = kind, .handle = nullptr, .is_ours = true, .markers = nullptr});
  if (kind.part != nullptr) {
    const Driver& driver = Driver::get();
    driver.check(
        driver.green_context_stream_create(&own->handle, kind.part->context, CU_STREAM_NON_BLOCKING, kind.priority),
        "cuGreenCtxStreamCreate");
  } else {
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&own->handle, cudaStreamNonBlocking, kind.priority));
  }
  own->markers = make_written_markers(own->handle);
  return own;
}

std::unique_ptr<MarkedStream> MarkedStream::take(cudaStream_t others) {
  auto kept_one = take_kept([&](const MarkedStream& each) { return !each.is_ours && each.handle == others; });
  if (kept_one != nullptr) {
    return kept_one;
  }
  return std::make_unique<MarkedStream>(
      MarkedStream{.kind = {}, .handle = others, .is_ours = false, .markers = make_written_markers(others)});
}

void MarkedStream::give_back(std::unique_ptr<MarkedStream> stream) {
  std::lock_guard lock(kept().mutex);
  kept().streams.push_back(std::move(stream));
}

CudaEvent::CudaEvent(const c10::cuda::CUDAStream& stream) {
  event_.record(stream);
}

CudaStream::CudaStream(const StreamKind& kind, std::string job)
    : kind_(kind), legacy_(kind.device, std::move(job)), main_(add(MarkedStream::take(kind))) {}

CudaStream::~CudaStream() {
  const c10::cuda::CUDAGuard guard(kind_.device);  // the legacy stream is that of the current device
  cudaError_t error = cudaSuccess;
  const auto keep_first = [&](cudaError_t result) { error = error == cudaSuccess ? result : error; };
  for (Member& member : members_) {
    const cudaError_t result = cudaStreamSynchronize(member.stream->handle);
    if (member.stream->is_ours) {
      keep_first(result);
      if (result == cudaSuccess) {  // else the next job that gets the stream would not be charged for its own
        free_workspaces(member.stream->handle);
      }
    } else if (result != cudaSuccess) {
      (void)member.stream.release();  // whoever owns the stream has destroyed it; the device may still write markers
      continue;
    }
    MarkedStream::give_back(std::move(member.stream));
  }
  for (const cudaEvent_t event : events_) {
    keep_first(cudaEventDestroy(event));
  }
  C10_CUDA_CHECK_WARN(error);  // once: of a lost device, thousands of events say the same
}

cudaStream_t CudaStream::add(std::unique_ptr<MarkedStream> stream) {
  const cudaStream_t handle = stream->handle;
  std::lock_guard lock(mutex_);
  const std::uint64_t offset = stream->marked - latest_;
  members_.push_back({std::move(stream), offset});
  if (const std::size_t known = known_count_.load(); known < kKnown) {
    known_[known].store(handle);
    known_count_.store(known + 1);
  }
  return handle;
}

bool CudaStream::is_known(cudaStream_t stream) const {
  const std::size_t known = known_count_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < known; ++i) {
    if (known_[i].load(std::memory_order_relaxed) == stream) {
      return true;
    }
  }
  if (known < kKnown) {
    return false;
  }
  std::lock_guard lock(mutex_);
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& each) { return each.stream->handle == stream; });
}

cudaStream_t CudaStream::current_stream() const {
  return c10::cuda::getCurrentCUDAStream(kind_.device).stream();
}

void CudaStream::follow_current() {
  if (is_capturing()) {
    return;
  }
  const cudaStream_t stream = current_stream();
  if (stream != main_ && !is_known(stream)) {
    add(MarkedStream::take(stream));
  }
  if (legacy_.before_op(stream)) {
    add_legacy();
  }
}

void CudaStream::end_op() noexcept {
  if (!is_capturing()) {
    legacy_.after_op(current_stream());
  }
}

void CudaStream::give_out() {
  if (!is_capturing() && legacy_.give_out(current_stream())) {
    add_legacy();
  }
}

/// What the job has there is waited for as all of its work, by the gate too.
void CudaStream::add_legacy() {
  if (!is_known(LegacyStream::kHandle)) {
    add(MarkedStream::take(LegacyStream::kHandle));
  }
}

void CudaStream::wait_for(const CudaEvent& event) {
  C10_CUDA_CHECK(cudaStreamWaitEvent(main_, event.handle(), 0));
}

c10::cuda::CUDAStream CudaStream::torchs() const {
  return c10::cuda::getStreamFromExternal(main_, kind_.device);
}

cudaStream_t CudaStream::open() {
  if (is_capturing()) {
    return nullptr;
  }
  if (open_.size() < kMaxOpen) {
    open_.push_back(add(MarkedStream::take(kind_)));
    return open_.back();
  }
  return open_[returned_again_++ % kMaxOpen];
}

bool CudaStream::is_on_part() const {
  const cudaStream_t stream = current_stream();
  std::lock_guard lock(mutex_);
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.stream->is_ours && member.stream->handle == stream && member.stream->kind.part != kind_.part;
  });
}

cudaStream_t CudaStream::open_on(const SmPart& part) {
  StreamKind kind = kind_;
  kind.part = &part;
  {
    std::lock_guard lock(mutex_);
    for (const Member& member : members_) {
      if (member.stream->is_ours && member.stream->kind == kind) {
        return member.stream->handle;
      }
    }
  }
  return add(MarkedStream::take(kind));
}

void CudaStream::set_capturing(bool capturing) {
  std::lock_guard lock(driver_);
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

std::vector<MarkedStream*> CudaStream::streams() const {
  std::vector<MarkedStream*> found;
  std::lock_guard lock(mutex_);
  for (const Member& member : members_) {
    found.push_back(member.stream.get());
  }
  return found;
}

DeviceStream::Marker CudaStream::record_marker() {
  std::lock_guard order(driver_);
  if (capturing_) {
    return 0;
  }
  const c10::cuda::CUDAGuard guard(kind_.device);  // the legacy stream is that of the current device
  std::vector<MarkedStream*> marked;
  Marker number = 0;
  {
    std::lock_guard lock(mutex_);
    for (const Member& member : members_) {
      ++member.stream->marked;
      marked.push_back(member.stream.get());
    }
    number = ++latest_;
  }
  for (MarkedStream* const stream : marked) {
    record_on(*stream);
  }
  return number;
}

void CudaStream::record_on(MarkedStream& stream) {
  try {
    stream.markers->record(stream.marked);
  } catch (const std::exception&) {
    (void)is_done(main_);  // throws if the device has failed
    if (stream.is_ours) {
      throw;
    }
    drop(stream);
  }
}

void CudaStream::drop(const MarkedStream& stream) {
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& each) { return each.stream.get() == &stream; });
  (void)found->stream.release();  // the device may still write markers
  members_.erase(found);
  for (auto& known : known_) {  // another stream may get the handle
    if (known.load() == stream.handle) {
      known.store(no_stream());
    }
  }
}

DeviceStream::Marker CudaStream::passed() const {
  std::lock_guard lock(mutex_);
  Marker passed = latest_;
  for (const Member& member : members_) {
    passed = std::min(passed, member.stream->markers->passed() - member.offset);
  }
  return passed;
}

bool CudaStream::has_work() const {
  const c10::cuda::CUDAGuard guard(kind_.device);  // the legacy stream is that of the current device
  std::lock_guard lock(driver_);
  if (capturing_) {  // a query would invalidate the capture
    return true;
  }
  const auto all = streams();
  return std::any_of(all.begin(), all.end(),
                     [](const MarkedStream* each) { return is_lasting(*each) && !is_done(each->handle); });
}

bool CudaStream::has_work_beside(std::uintptr_t waiting) const {
  const c10::cuda::CUDAGuard guard(kind_.device);  // the legacy stream is that of the current device
  std::lock_guard lock(driver_);
  if (capturing_) {  // a query would invalidate the capture
    return true;
  }
  const auto all = streams();
  return std::any_of(all.begin(), all.end(), [&](const MarkedStream* each) {
    const bool waits = reinterpret_cast<std::uintptr_t>(each->handle) == waiting;
    return !waits && (!is_lasting(*each) || !is_done(each->handle));
  });
}

bool CudaStream::has_finished() const {
  return !has_work_beside(reinterpret_cast<std::uintptr_t>(no_stream()));
}

void CudaStream::check() const {
  std::lock_guard lock(driver_);
  if (!capturing_) {  // a query would invalidate the capture
    (void)is_done(main_);
  }
}

bool CudaStream::is_capturing() const {
  return capturing_.load();
}

DeviceStream::Stamp CudaStream::stamp() {
  if (is_capturing()) {
    return 0;
  }
  const std::size_t index = ++last_stamp_ % kStamps;
  while (events_.size() <= index) {
    const c10::cuda::CUDAGuard guard(kind_.device);  // the job's thread may have another one current
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
  if (!is_capturing() && legacy_.look(main_)) {
    add_legacy();
  }
  const c10::cuda::CUDAGuard guard(kind_.device);  // the legacy stream is that of the current device
  for (const MarkedStream* const stream : streams()) {
    const cudaError_t result = cudaStreamSynchronize(stream->handle);
    if (result != cudaSuccess && !stream->is_ours) {
      (void)cudaGetLastError();
      (void)is_done(main_);  // throws if the device has failed; else whoever owns the stream has destroyed it
    } else {
      C10_CUDA_CHECK(result);
    }
  }
}

}  // namespace torchshare
