#include "device/cuda/cuda_markers.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/driver.h"
#include "device/cuda_status.h"
#include "device/marker_cost.h"

namespace torchshare {
namespace {

class WrittenMarkers final : public CudaMarkers {
 public:
  explicit WrittenMarkers(cudaStream_t stream) : stream_(stream) {
    C10_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof(std::uint32_t), cudaHostAllocMapped));
    *word_ = 0;
    C10_CUDA_CHECK(cudaHostGetDevicePointer(&device_word_, word_, 0));
  }
  ~WrittenMarkers() override { C10_CUDA_CHECK_WARN(cudaFreeHost(word_)); }

  void record(std::uint64_t number) override {
    const Driver& driver = Driver::get();
    latest_.store(number, std::memory_order_relaxed);
    driver.check(driver.stream_write_value(stream_, reinterpret_cast<CUdeviceptr>(device_word_),
                                           static_cast<std::uint32_t>(number), CU_STREAM_WRITE_VALUE_DEFAULT),
                 "cuStreamWriteValue32");
  }
  std::uint64_t passed() const override {
    // The word is the low half of a number less than half its range behind the latest. Read in this order, so that the
    // latest is no earlier than what the device has written.
    const std::uint32_t written = std::atomic_ref(*word_).load(std::memory_order_acquire);
    const std::uint64_t latest = latest_.load(std::memory_order_relaxed);
    return latest - static_cast<std::uint32_t>(static_cast<std::uint32_t>(latest) - written);
  }

 private:
  const cudaStream_t stream_;
  std::uint32_t* word_ = nullptr;  // pinned; the device writes it
  void* device_word_ = nullptr;    // the same, as the device knows it
  std::atomic<std::uint64_t> latest_{0};
};

class EventMarkers final : public CudaMarkers {
 public:
  explicit EventMarkers(cudaStream_t stream) : stream_(stream), events_(kEvents) {
    for (cudaEvent_t& event : events_) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
  ~EventMarkers() override {
    for (const cudaEvent_t event : events_) {
      C10_CUDA_CHECK_WARN(cudaEventDestroy(event));
    }
  }

  void record(std::uint64_t number) override {
    std::lock_guard lock(mutex_);
    if (number - passed_ >= kEvents) {  // the event is still in use
      C10_CUDA_CHECK(cudaEventSynchronize(events_[number % kEvents]));
      passed_ = number - kEvents;
    }
    C10_CUDA_CHECK(cudaEventRecord(events_[number % kEvents], stream_));
    latest_ = number;
  }
  std::uint64_t passed() const override {
    std::lock_guard lock(mutex_);
    while (passed_ < latest_ && is_done(cudaEventQuery(events_[(passed_ + 1) % kEvents]))) {
      ++passed_;
    }
    return passed_;
  }

 private:
  static constexpr std::uint64_t kEvents = 1024;

  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  mutable std::mutex mutex_;  // guards latest_, passed_
  std::uint64_t latest_ = 0;
  mutable std::uint64_t passed_ = 0;
};

}  // namespace

std::unique_ptr<CudaMarkers> make_written_markers(cudaStream_t stream) {
  return std::make_unique<WrittenMarkers>(stream);
}

std::unique_ptr<CudaMarkers> make_event_markers(cudaStream_t stream) {
  return std::make_unique<EventMarkers>(stream);
}

MarkerCost measure_marker_cost(std::string_view kind, int count) {
  using std::chrono::steady_clock;
  if (kind != "write" && kind != "event") {
    throw std::invalid_argument(fmt::format("kind must be 'write' or 'event', got '{}'", kind));
  }
  if (count < 1 || cuda_device_count() == 0) {
    throw std::invalid_argument(fmt::format("count must be at least 1, on a GPU ({}), got {}", cuda_status(), count));
  }
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const auto markers = kind == "write" ? make_written_markers(stream) : make_event_markers(stream);
  const auto begin = steady_clock::now();
  for (int number = 1; number <= count; ++number) {
    markers->record(static_cast<std::uint64_t>(number));
  }
  const auto put = steady_clock::now();
  stream.synchronize();
  std::uint64_t passed = markers->passed();  // includes what the first call has to catch up with
  const auto synchronized = steady_clock::now();
  for (int look = 0; look < count; ++look) {
    passed = std::min(passed, markers->passed());
  }
  const auto looked = steady_clock::now();
  TORCH_CHECK(passed == static_cast<std::uint64_t>(count), "of ", count, " markers, ", passed, " were passed");
  return {.put = (put - begin) / count, .look = (looked - synchronized) / count};
}

}  // namespace torchshare
