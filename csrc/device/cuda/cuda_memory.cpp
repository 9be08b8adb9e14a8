#include "device/cuda/cuda_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/torch_version.h"
#include "memory/owned_memory.h"

namespace torchshare {
namespace {

using c10::DeviceIndex;
using c10::MempoolId_t;

std::atomic<int>& users_on(DeviceIndex device) {
  static std::array<std::atomic<int>, C10_COMPILE_TIME_MAX_GPUS> users{};
  return users.at(static_cast<std::size_t>(device));
}

/// Torch's allocator, asking the owner's budget first.
///
/// Note [Uses during a capture]
/// While any thread captures a graph, torch 2.11 takes each `recordStream` for a part of that graph. If the block is
/// freed before the capture ends, the use is forgotten and the memory is handed out at once, although the stream may
/// still have to read it, in a job that captures nothing. So a use of a job's block by a stream that is not captured is
/// kept from torch until no thread captures, and so is the block if it is freed in the meantime. torch would not reuse
/// it before then, either, had the use been recorded before the capture. Blocks of no job are left to torch.
/// Before torch 2.13, each use of a pool (`torch.cuda.use_mem_pool`) counts as a capture, for torch and so for us.
///
/// Note [Pools during a capture]
/// Before torch 2.15, destroying a pool while any thread captures fails an assertion of torch, which ends the process:
/// a pool is emptied once no thread captures. A graph would then replay in memory that is freed, so a capture that uses
/// a pool of its own is refused.
class CudaMemory final : public TorchsAllocator {
 public:
  using TorchsAllocator::TorchsAllocator;

  c10::DataPtr allocate(std::size_t bytes) override {
    return data(bytes, [&] { return torchs_.allocate(bytes); });
  }
  void* raw_alloc(std::size_t bytes) override {
    return raw(bytes, [&] { return torchs_.raw_alloc(bytes); });
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return raw(bytes, [&] { return torchs_.raw_alloc_with_stream(bytes, stream); });
  }
  void raw_delete(void* block) override {
    if (!disown(block)) {
      torchs_.raw_delete(block);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    has_events_.store(true);
    if (!is_owners(data.get_deleter())) {
      torchs_.recordStream(data, stream);
      return;
    }
    const auto now = [&] { record(data.get_context(), stream); };
    if (!unless_capturing(now)) {
      if (is_captured(stream)) {
        now();
      } else {
        std::lock_guard lock(mutex_);
        late_uses_[data.get_context()].streams.push_back(stream);
        is_late_.store(true);
      }
    }
    catch_up();
  }

  /// The driver frees memory once the device has nothing to do, and this lock of torch's is held meanwhile: beside
  /// other jobs, a job's call does nothing. Where memory runs out, torch empties the cache by itself.
  void emptyCache(MempoolId_t pool) override {
    const bool is_jobs = memory_owner(c10::DeviceType::CUDA) != nullptr;
    if (is_jobs && pool == MempoolId_t{0, 0} && users_on(c10::cuda::current_device()) > 1) {
      return;
    }
    if (kGraphsKeepPools || pool == MempoolId_t{0, 0}) {
      unless_lost([&] { torchs_.emptyCache(pool); });
      return;
    }
    {
      std::lock_guard lock(mutex_);
      late_pools_.push_back(pool);
      is_late_.store(true);
    }
    catch_up();
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    TORCH_CHECK(kGraphsKeepPools || !is_captured(c10::cuda::getCurrentCUDAStream(device)),
                "a graph keeps no pools of memory (torch.cuda.use_mem_pool) with torch ", TORCH_VERSION,
                "; torch 2.15 does");
    const auto begin = [&] { torchs_.beginAllocateToPool(device, pool, std::move(filter)); };
    kMarksCaptures ? begin() : begin_capture(begin);
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    const auto end = [&] { torchs_.endAllocateToPool(device, pool); };
    kMarksCaptures ? end() : end_capture(end);
  }
  void markCaptureBegin(DeviceIndex device) override {
    begin_capture([&] { TorchsAllocator::markCaptureBegin(device); });
  }
  void markCaptureEnd(DeviceIndex device) override {
    end_capture([&] { TorchsAllocator::markCaptureEnd(device); });
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return data(bytes, [&] { return TorchsAllocator::allocateWithAddress(bytes, address); });
  }

 private:
  static const MemoryOwner* owner_of(std::size_t bytes) {
    const MemoryOwner* const owner = bytes > 0 ? memory_owner(c10::DeviceType::CUDA) : nullptr;
    if (owner != nullptr) {
      owner->check_device({c10::DeviceType::CUDA, c10::cuda::current_device()}, "a new tensor");
    }
    return owner;
  }
  template <class Allocate>
  void* raw(std::size_t bytes, Allocate allocate) {
    const MemoryOwner* const owner = owner_of(bytes);
    if (owner == nullptr) {
      return unless_lost(allocate);
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    void* const block = unless_lost(allocate);
    own(block, &give_back, *owner, std::move(reservation));
    return block;
  }
  template <class Allocate>
  c10::DataPtr data(std::size_t bytes, Allocate allocate) {
    const MemoryOwner* const owner = owner_of(bytes);
    if (owner == nullptr) {
      return unless_lost(allocate);
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    c10::DataPtr block = unless_lost(allocate);
    (void)block.compare_exchange_deleter(torchs_.raw_deleter(), &give_back);
    return own(std::move(block), *owner, std::move(reservation));
  }
  static void release(void* block);
  static void give_back(void* block);

  /// Returns an owner's block to torch, now or once torch has been told of its uses.
  void free_or_keep(void* block) {
    if (is_late_.load()) {
      std::lock_guard lock(mutex_);
      if (const auto late = late_uses_.find(block); late != late_uses_.end()) {
        late->second.freed = true;
        return;
      }
    }
    free(block);
  }
  void free(void* block) noexcept {
    quietly("memory is not returned", [&] { torchs_.raw_deleter()(block); });
  }
  /// For destructors: torch throws if the device has failed.
  template <class Call>
  static void quietly(const char* failure, Call call) noexcept {
    try {
      call();
    } catch (const c10::Error& error) {
      TORCH_WARN_ONCE("torchshare: ", failure, " to torch: ", error.what_without_backtrace());
    }
  }
  /// Calls torch's allocator, but not again once it has found that the device has failed: torch 2.11 leaves a null
  /// event in its list then, and the next call crashes. One call at a time, or that could be one that is already
  /// waiting.
  template <class Call>
  std::invoke_result_t<Call> unless_lost(Call call) {
    if (!has_events_.load(std::memory_order_relaxed) || torchs_.isHistoryEnabled()) {  // history may want the GIL
      return call();
    }
    std::lock_guard lock(calls_);
    const DeviceIndex device = c10::cuda::current_device();
    if (const auto found = failures_.find(device); found != failures_.end()) {
      std::rethrow_exception(found->second);
    }
    try {
      return call();
    } catch (const c10::AcceleratorError&) {
      if (lasting_error(device)) {
        failures_.emplace(device, std::current_exception());
      }
      throw;
    }
  }
  /// Torch's allocator recognizes its blocks by its own deleter and ignores all others.
  void record(void* block, c10::cuda::CUDAStream stream) {
    c10::DataPtr as_torchs(block, block, torchs_.raw_deleter(), stream.device());
    try {
      torchs_.recordStream(as_torchs, stream);
    } catch (...) {
      as_torchs.release_context();
      throw;
    }
    as_torchs.release_context();  // it is the owner's
  }
  static bool is_captured(c10::cuda::CUDAStream stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK_WARN(cudaStreamIsCapturing(stream.stream(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  template <class Begin>
  void begin_capture(Begin begin) {
    std::lock_guard lock(capturing_);
    begin();
    ++captures_;
  }
  template <class End>
  void end_capture(End end) {
    {
      std::lock_guard lock(capturing_);
      end();
      captures_ = std::max(captures_ - 1, 0);  // one may have begun before there was this allocator
    }
    catch_up();
  }

  /// Calls, and returns true, if no thread captures and nothing is late. Does not wait: the thread that holds the lock
  /// may want the GIL, which this one may hold.
  template <class Call>
  bool unless_capturing(Call call) {
    const std::unique_lock no_capture_begins(capturing_, std::try_to_lock);
    if (!no_capture_begins || captures_ > 0 || is_late_.load()) {
      return false;
    }
    call();
    return true;
  }
  /// Tells torch what is late, unless a thread captures. A thread that holds the lock catches up once it has released
  /// it.
  void catch_up() {
    while (is_late_.load()) {
      const std::unique_lock no_capture_begins(capturing_, std::try_to_lock);
      if (!no_capture_begins || captures_ > 0) {
        return;
      }
      while (tell_one()) {
      }
    }
  }
  /// Returns false if nothing is late. Calls torch without `mutex_`, for which threads wait with the GIL.
  bool tell_one() {
    std::unique_lock lock(mutex_);
    const auto late = late_uses_.begin();
    if (late == late_uses_.end() && late_pools_.empty()) {
      is_late_.store(false);
      return false;
    }
    if (late == late_uses_.end()) {  // pools last: blocks of theirs may have been freed late
      const MempoolId_t pool = late_pools_.back();
      late_pools_.pop_back();
      lock.unlock();
      quietly("a pool is not given back", [&] { unless_lost([&] { torchs_.emptyCache(pool); }); });
      return true;
    }
    void* const block = late->first;
    const auto streams = std::exchange(late->second.streams, {});
    if (!streams.empty()) {  // found by `free_or_keep` until all are recorded
      lock.unlock();
      for (const c10::cuda::CUDAStream stream : streams) {
        quietly("a use of memory is not told", [&] { record(block, stream); });
      }
      return true;
    }
    const bool freed = late->second.freed;
    late_uses_.erase(late);
    lock.unlock();
    if (freed) {
      free(block);
    }
    return true;
  }

  /// What torch is to be told once no thread captures.
  struct LateUse {
    std::vector<c10::cuda::CUDAStream> streams{};
    bool freed = false;
  };

  std::atomic<bool> has_events_{false};  // torch's allocator may query some
  std::mutex calls_;                     // guards failures_, and torch's allocator while it has events
  std::unordered_map<DeviceIndex, std::exception_ptr> failures_;
  std::mutex capturing_;                          // guards captures_; held while torch is told of a use or pool
  int captures_ = 0;                              // under way
  std::mutex mutex_;                              // guards late_*, with `capturing_` or without
  std::atomic<bool> is_late_{false};              // late_* may not be empty
  std::unordered_map<void*, LateUse> late_uses_;  // by block
  std::vector<MempoolId_t> late_pools_;           // to empty
};

CudaMemory& cuda_memory() {
  static CudaMemory* const memory =
      new CudaMemory(*c10::cuda::CUDACachingAllocator::get());  // outlives the tensors of static objects
  return *memory;
}

void CudaMemory::release(void* block) {
  cuda_memory().raw_delete(block);
}

void CudaMemory::give_back(void* block) {
  cuda_memory().free_or_keep(block);
}

bool install_once() {
  c10::cuda::CUDACachingAllocator::allocator.store(&cuda_memory());
  constexpr std::uint8_t kPriority = 1;  // as torch 2.15 has set its own; before, it was 0
  c10::SetAllocator(c10::DeviceType::CUDA, &cuda_memory(), kPriority);  // for torch.accelerator, and extensions
  return true;
}

}  // namespace

CudaMemoryUser::CudaMemoryUser(DeviceIndex device) : device_(device) {
  ++users_on(device_);
}

CudaMemoryUser::~CudaMemoryUser() {
  --users_on(device_);
}

void install_cuda_memory() {
  static const bool installed = install_once();
  (void)installed;
}

}  // namespace torchshare
