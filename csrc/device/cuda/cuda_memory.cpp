#include "device/cuda/cuda_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <utility>

#include "memory/owned_memory.h"

namespace torchshare {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

/// Torch's allocator, asking the owner's budget first. Everything else is forwarded; a test compares the list with
/// torch's header.
class CudaMemory final : public CUDAAllocator {
 public:
  explicit CudaMemory(CUDAAllocator& torchs) : torchs_(torchs) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const MemoryOwner* const owner = owner_of(bytes);
    if (owner == nullptr) {
      return torchs_.allocate(bytes);
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    return own(torchs_.allocate(bytes), *owner, std::move(reservation));
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

  /// Torch's allocator recognizes its blocks by its own deleter and ignores all others.
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (!is_owners(data.get_deleter())) {
      torchs_.recordStream(data, stream);
      return;
    }
    c10::DataPtr as_torchs(data.get(), data.get_context(), &keep, data.device());
    if (as_torchs.compare_exchange_deleter(&keep, torchs_.raw_deleter())) {
      try {
        torchs_.recordStream(as_torchs, stream);
      } catch (...) {
        as_torchs.release_context();
        throw;
      }
      as_torchs.release_context();  // it is `data`'s
    }
  }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return torchs_.is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torchs_.copy_data(to, from, bytes); }
  bool initialized() override { return torchs_.initialized(); }
  void init(int devices) override { torchs_.init(devices); }
  void emptyCache(MempoolId_t pool) override { torchs_.emptyCache(pool); }
  void enable(bool value) override { torchs_.enable(value); }
  bool isEnabled() const override { return torchs_.isEnabled(); }
  std::string name() override { return torchs_.name(); }
  double getMemoryFraction(DeviceIndex device) override { return torchs_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { torchs_.setMemoryFraction(fraction, device); }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return torchs_.getExpandableSegmentSizes(device);
  }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override { torchs_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* pointer, std::size_t* size) override {
    return torchs_.getBaseAllocation(pointer, size);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return torchs_.getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { torchs_.resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { torchs_.resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override {
    return torchs_.getMemoryInfo(device);
  }
  SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    return torchs_.snapshot(pool, include_traces);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    torchs_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { torchs_.endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { torchs_.releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return torchs_.getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    torchs_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool value) override {
    torchs_.setUseOnOOM(device, pool, value);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { torchs_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return torchs_.checkPoolLiveAllocations(device, pool, expected);
  }
  ShareableHandle shareIpcHandle(void* pointer) override { return torchs_.shareIpcHandle(pointer); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return torchs_.getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return torchs_.isHistoryEnabled(); }
  void recordHistory(bool enabled, CreateContextFn recorder, std::size_t most, RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    torchs_.recordHistory(enabled, recorder, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    torchs_.recordAnnotation(metadata);
  }
  void pushCompileContext(std::string& metadata) override { torchs_.pushCompileContext(metadata); }
  void popCompileContext() override { torchs_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { torchs_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return torchs_.getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    torchs_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    torchs_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override { torchs_.enablePeerAccess(device, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peer) override {
    return torchs_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peer);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return torchs_.getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    return torchs_.setCheckpointPoolState(device, std::move(state));
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  void markCaptureBegin(DeviceIndex device) override { torchs_.markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { torchs_.markCaptureEnd(device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return torchs_.getContextForPointer(pointer);
  }
  bool supportsUserMetadata() override { return torchs_.supportsUserMetadata(); }
  void annotateMemory(const void* pointer, const std::string& metadata) override {
    torchs_.annotateMemory(pointer, metadata);
  }
  void attachOomRejectionObserver(OomRejectionObserver observer) override {
    torchs_.attachOomRejectionObserver(std::move(observer));
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    const MemoryOwner* const owner = owner_of(bytes);
    if (owner == nullptr) {
      return torchs_.allocateWithAddress(bytes, address);
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    return own(torchs_.allocateWithAddress(bytes, address), *owner, std::move(reservation));
  }
#endif

 private:
  static const MemoryOwner* owner_of(std::size_t bytes) {
    return bytes > 0 ? memory_owner(c10::DeviceType::CUDA) : nullptr;
  }
  template <class Allocate>
  void* raw(std::size_t bytes, Allocate allocate) {
    const MemoryOwner* const owner = owner_of(bytes);
    if (owner == nullptr) {
      return allocate();
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    void* const block = allocate();
    own(block, torchs_.raw_deleter(), *owner, std::move(reservation));
    return block;
  }
  static void keep(void*) {}
  static void release(void* block);

  CUDAAllocator& torchs_;
};

CudaMemory& cuda_memory() {
  static CudaMemory* const memory = new CudaMemory(*get());  // outlives the tensors of static objects
  return *memory;
}

void CudaMemory::release(void* block) {
  cuda_memory().raw_delete(block);
}

bool install_once() {
  allocator.store(&cuda_memory());
  return true;
}

}  // namespace

void install_cuda_memory() {
  static const bool installed = install_once();
  (void)installed;
}

}  // namespace torchshare
