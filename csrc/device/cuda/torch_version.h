#pragma once

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

// What differs between the versions of torch; no other file of csrc/ has an `#if` for it. Written for 2.11 to 2.15.
#define TORCHSHARE_SINCE_TORCH_2(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace torchshare {

namespace torchs = c10::cuda::CUDACachingAllocator;

/// Whether a torch graph whose capture failed, or was abandoned, stops allocating from its pool by itself, and
/// destroying it releases the pool and the generator. torch 2.11 leaves all of that as it is.
inline constexpr bool kGraphsEndFailedCaptures = TORCHSHARE_SINCE_TORCH_2(15);

/// Whether a graph keeps the pools of memory that its capture uses, and such a pool may go while a thread captures.
inline constexpr bool kGraphsKeepPools = TORCHSHARE_SINCE_TORCH_2(15);

/// Whether torch tells its allocator when a capture begins and ends. Before, a capture is a use of a pool like others.
inline constexpr bool kMarksCaptures = TORCHSHARE_SINCE_TORCH_2(13);

/// Frees what torch keeps as workspaces of cuBLAS on that stream, whose work is done: before 2.15 always, since then
/// where TORCH_CUBLAS_WORKSPACE_CACHE is 1. (2.12 and later have clearCublasWorkspacesForStream.)
inline void free_workspaces(cudaStream_t stream) {
  for (auto* const kept :
       {&at::cuda::cublas_handle_stream_to_workspace(), &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    std::unique_lock lock(kept->mutex);
    std::erase_if(kept->map, [&](const auto& each) { return std::get<1>(each.first) == stream; });
  }
}

/// An allocator that forwards every call to torch's. A test compares the list with torch's header: a virtual function
/// that is missing would silently be the base class's.
class TorchsAllocator : public torchs::CUDAAllocator {
 public:
  explicit TorchsAllocator(torchs::CUDAAllocator& torchs) : torchs_(torchs) {}

  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return torchs_.is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torchs_.copy_data(to, from, bytes); }
  bool initialized() override { return torchs_.initialized(); }
  void init(int devices) override { torchs_.init(devices); }
  void enable(bool value) override { torchs_.enable(value); }
  bool isEnabled() const override { return torchs_.isEnabled(); }
  std::string name() override { return torchs_.name(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return torchs_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    torchs_.setMemoryFraction(fraction, device);
  }
  std::vector<torchs::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return torchs_.getExpandableSegmentSizes(device);
  }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { torchs_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* pointer, std::size_t* size) override {
    return torchs_.getBaseAllocation(pointer, size);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return torchs_.getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { torchs_.resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { torchs_.resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return torchs_.getMemoryInfo(device);
  }
  torchs::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override {
    return torchs_.snapshot(pool, include_traces);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override { torchs_.releasePool(device, pool); }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return torchs_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<torchs::CUDAAllocator> allocator) override {
    torchs_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool value) override {
    torchs_.setUseOnOOM(device, pool, value);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override { torchs_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return torchs_.checkPoolLiveAllocations(device, pool, expected);
  }
  torchs::ShareableHandle shareIpcHandle(void* pointer) override { return torchs_.shareIpcHandle(pointer); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return torchs_.getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return torchs_.isHistoryEnabled(); }
  void recordHistory(bool enabled, torchs::CreateContextFn recorder, std::size_t most, torchs::RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override {
    torchs_.recordHistory(enabled, recorder, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    torchs_.recordAnnotation(metadata);
  }
  void pushCompileContext(std::string& metadata) override { torchs_.pushCompileContext(metadata); }
  void popCompileContext() override { torchs_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { torchs_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return torchs_.getUserMetadata(); }
  void attachOutOfMemoryObserver(torchs::OutOfMemoryObserver observer) override {
    torchs_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(torchs::AllocatorTraceTracker tracker) override {
    torchs_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to) override { torchs_.enablePeerAccess(device, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peer) override {
    return torchs_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peer);
  }
  std::shared_ptr<torchs::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return torchs_.getCheckpointState(device, pool);
  }
  torchs::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<torchs::AllocatorState> state) override {
    return torchs_.setCheckpointPoolState(device, std::move(state));
  }
#if TORCHSHARE_SINCE_TORCH_2(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return torchs_.getContextForPointer(pointer);
  }
  void attachOomRejectionObserver(torchs::OomRejectionObserver observer) override {
    torchs_.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if TORCHSHARE_SINCE_TORCH_2(14)
  bool supportsUserMetadata() override { return torchs_.supportsUserMetadata(); }
  void annotateMemory(const void* pointer, const std::string& metadata) override {
    torchs_.annotateMemory(pointer, metadata);
  }
#endif
#if TORCHSHARE_SINCE_TORCH_2(13)
  void markCaptureBegin(c10::DeviceIndex device) override { torchs_.markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) override { torchs_.markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return torchs_.allocateWithAddress(bytes, address);
  }
#else  // for CudaMemory to override; torch does not call them
  virtual void markCaptureBegin(c10::DeviceIndex) {}
  virtual void markCaptureEnd(c10::DeviceIndex) {}
  virtual c10::DataPtr allocateWithAddress(std::size_t, void*) { return {}; }
#endif

 protected:
  torchs::CUDAAllocator& torchs_;
};

}  // namespace torchshare
