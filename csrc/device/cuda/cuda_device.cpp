#include "device/cuda/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/cuda_graph.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda_status.h"

namespace torchshare {
namespace {

/// Stays free for what the driver loads later: modules of kernels, and the state of cuDNN and cuBLAS.
constexpr std::int64_t kForModules = std::int64_t{1} << 30;

/// The primary gets the GPU's most urgent priority, each lower level the next one, as far as there are any.
int cuda_priority(Priority priority) {
  int lowest = 0;
  int highest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return std::min(lowest, highest + static_cast<int>(priority));
}

at::Generator make_generator(c10::DeviceIndex device, std::uint64_t seed) {
  at::Generator generator = at::cuda::detail::createCUDAGenerator(device);
  generator.set_current_seed(seed);
  return generator;
}

/// The thread's short waits end on time, not up to 50 us later.
void wake_in_time() {
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

class CudaPart final : public DevicePart {
 public:
  CudaPart(SmPart::Held part, cudaStream_t stream) : part_(std::move(part)), stream_(stream) {}
  int sms() const override { return part_->count; }
  std::uintptr_t stream() const override { return reinterpret_cast<std::uintptr_t>(stream_); }

 private:
  const SmPart::Held part_;
  const cudaStream_t stream_;
};

class CudaScope final : public DeviceScope {
 public:
  CudaScope(c10::DeviceIndex device, const DeviceRequest& request)
      : device_(device),
        part_(request.sms ? SmPart::take(device, *request.sms) : nullptr),
        stream_(std::make_shared<CudaStream>(StreamKind{device, cuda_priority(request.priority), part_.get()},
                                             request.job)),
        generator_(make_generator(device, request.seed)),
        guard_(stream_->torchs()),
        user_(device) {
    wake_in_time();
    if (request.after != nullptr) {  // what the program launched before submit on its current stream
      stream_->wait_for(static_cast<const CudaEvent&>(*request.after));
    }
    stream_->wait_for_program();  // before now, on its default one
  }

  std::shared_ptr<DeviceStream> stream() override { return stream_; }
  at::Generator generator() override { return generator_; }
  std::optional<int> sms() const override { return part_ == nullptr ? std::nullopt : std::optional(part_->count); }
  std::unique_ptr<DeviceGraph> make_graph() override { return std::make_unique<CudaGraph>(stream_, generator_); }
  std::uintptr_t open_stream() override { return reinterpret_cast<std::uintptr_t>(stream_->open()); }
  std::unique_ptr<DevicePart> take_part(int sms) override {
    SmPart::Held part = SmPart::take(stream_->torchs().device_index(), sms);
    const cudaStream_t stream = stream_->open_on(*part);
    return std::make_unique<CudaPart>(std::move(part), stream);
  }

 private:
  const c10::cuda::CUDAGuard device_;
  const SmPart::Held part_;
  const std::shared_ptr<CudaStream> stream_;
  const at::Generator generator_;
  const c10::cuda::CUDAStreamGuard guard_;
  const CudaMemoryUser user_;
};

}  // namespace

int default_cuda_device() {
  const int current = c10::cuda::device_count() > 0 ? c10::cuda::current_device() : 0;
  const char* const rank = std::getenv("LOCAL_RANK");
  const int local = rank != nullptr ? std::atoi(rank) : 0;
  return current == 0 && local > 0 && local < c10::cuda::device_count() ? local : current;
}

CudaDevice::CudaDevice(int index) : index_(index), name_(fmt::format("cuda:{}", index)) {
  const int devices = c10::cuda::device_count();
  if (index < 0 || index >= devices) {
    throw std::invalid_argument(
        fmt::format("device must be one of {} GPUs ({}), got 'cuda:{}'", devices, cuda_status(), index));
  }
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  check();
}

void CudaDevice::check() const {
  if (const auto error = lasting_error(static_cast<c10::DeviceIndex>(index_))) {
    throw std::runtime_error(
        fmt::format("device '{}' is lost to this process ({}); start a new process", name_, *error));
  }
}

std::optional<std::int64_t> CudaDevice::free_memory() const {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  try {
    const auto index = static_cast<c10::DeviceIndex>(index_);
    const c10::cuda::CUDAGuard guard(index);
    std::size_t free = 0;
    std::size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const c10::CachingDeviceAllocator::DeviceStats stats = allocator::getDeviceStats(index);
    constexpr std::size_t kAll = 0;
    const std::int64_t reserved = stats.reserved_bytes[kAll].current;
    const auto allowed = static_cast<std::int64_t>(allocator::getMemoryFraction(index) * static_cast<double>(total));
    const std::int64_t for_modules = std::min(kForModules, static_cast<std::int64_t>(total) / 8);
    const std::int64_t unreserved = std::min(static_cast<std::int64_t>(free) - for_modules, allowed - reserved);
    return std::max<std::int64_t>(0, unreserved) + reserved - stats.allocated_bytes[kAll].current;
  } catch (const std::exception&) {  // the device is lost
    return std::nullopt;
  }
}

void CudaDevice::install_memory() {
  install_cuda_memory();
}

std::shared_ptr<DeviceEvent> CudaDevice::record_event() {
  const auto index = static_cast<c10::DeviceIndex>(index_);
  const c10::cuda::CUDAGuard guard(index);
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(index);
  if (is_done(current.stream())) {
    return nullptr;  // jobs that run would take an event on the legacy stream for work
  }
  return std::make_shared<CudaEvent>(current);
}

std::unique_ptr<DeviceScope> CudaDevice::enter(const DeviceRequest& request) {
  check();
  return std::make_unique<CudaScope>(static_cast<c10::DeviceIndex>(index_), request);
}

}  // namespace torchshare
