#include "device/cuda/legacy_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <utility>

#include "device/cuda/cuda_errors.h"

namespace torchshare {
namespace {

/// How many of a device's jobs have given out tensors.
std::atomic<int>& givers_on(c10::DeviceIndex device) {
  static std::array<std::atomic<int>, C10_COMPILE_TIME_MAX_GPUS> givers{};
  return givers.at(static_cast<std::size_t>(device));
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

}  // namespace

LegacyStream::LegacyStream(c10::DeviceIndex device, std::string job) : device_(device), job_(std::move(job)) {
  const c10::cuda::CUDAGuard guard(device_);
  event_ = make_event();
  known_ = make_event();
}

LegacyStream::~LegacyStream() {
  if (gives_out_.load()) {
    --givers_on(device_);
  }
  // Of a lost device, the streams say so.
  (void)cudaEventDestroy(event_);
  (void)cudaEventDestroy(known_);
}

void LegacyStream::order(cudaEvent_t by, cudaStream_t first, cudaStream_t second) {
  std::lock_guard lock(mutex_);
  C10_CUDA_CHECK(cudaEventRecord(by, first));
  C10_CUDA_CHECK(cudaStreamWaitEvent(second, by, 0));
}

void LegacyStream::precede(cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(device_);
  if (!is_done(kHandle)) {  // otherwise other jobs would take the event for work
    order(known_, kHandle, stream);
  }
}

bool LegacyStream::give_out(cudaStream_t current) {
  if (!gives_out_.exchange(true)) {
    ++givers_on(device_);
  }
  const bool found = look(current);
  const c10::cuda::CUDAGuard guard(device_);
  order(event_, current, kHandle);
  std::lock_guard lock(mutex_);
  C10_CUDA_CHECK(cudaEventRecord(known_, kHandle));  // behind the wait, which is no work of the job's there
  return found;
}

bool LegacyStream::before_op(cudaStream_t current) {
  if (!is_found_.load(std::memory_order_relaxed) && look_in_.fetch_sub(1, std::memory_order_relaxed) > 1) {
    return false;
  }
  return look(current);
}

bool LegacyStream::look(cudaStream_t current) {
  const c10::cuda::CUDAGuard guard(device_);
  if (is_found_.load()) {
    order(event_, kHandle, current);
    return false;
  }
  const bool is_close = gives_out_.load() || (close_looks_.load() > 0 && close_looks_.fetch_sub(1) > 0);
  look_in_.store(is_close ? 1 : kSparse, std::memory_order_relaxed);
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);  // another thread may capture
  const bool known_is_done = is_done(cudaEventQuery(known_));  // first: what is there after that is new
  if (is_done(kHandle) || is_anothers()) {
    return false;
  }
  order(event_, kHandle, current);
  if (!known_is_done || !is_sure() || is_found_.exchange(true)) {
    return false;
  }
  warn();
  return true;
}

bool LegacyStream::is_sure() {
  if (close_looks_.exchange(kCloseLooks) <= 0) {
    sightings_.store(0);  // the last is long ago
    look_in_.store(1, std::memory_order_relaxed);
  }
  return sightings_.fetch_add(1) + 1 >= kSightings || gives_out_.load();
}

bool LegacyStream::is_anothers() const {
  return !gives_out_.load() && givers_on(device_).load() > 0;
}

void LegacyStream::after_op(cudaStream_t current) noexcept {
  if (!is_found_.load(std::memory_order_relaxed)) {
    return;
  }
  try {
    const c10::cuda::CUDAGuard guard(device_);
    order(event_, current, kHandle);
  } catch (const c10::Error&) {
    // The device is lost, as the job's next op says.
  }
}

void LegacyStream::warn() const {
  TORCH_WARN("job '", job_,
             "': work was found on CUDA's legacy default stream, launched past torch by this job, or by another one or "
             "the program. From now on the job's ops and that stream wait for each other; what the job has launched "
             "there before may have read tensors too early. Kernels that are launched on "
             "torch.cuda.current_stream().cuda_stream need no such waits");
}

}  // namespace torchshare
