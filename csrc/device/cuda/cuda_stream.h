#pragma once

#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cuda/cuda_markers.h"
#include "device/device.h"

namespace torchshare {

/// The properties of a stream.
struct StreamKind {
  c10::DeviceIndex device = 0;
  int priority = 0;             ///< CUDA's: lower is more urgent
  std::optional<int> sms = {};  ///< streaming multiprocessors it may use

  bool operator==(const StreamKind&) const = default;
};

/// A CUDA stream of ours. Any thread.
///
/// Note [Streams are kept]
/// torch's streams come from pools of 32 that are handed out round-robin, so two jobs could share one; ours are created
/// for one job. They are not destroyed when it ends but reused by the next job of that kind: torch's allocator caches
/// blocks per stream, and tensors that outlive their job still refer to it.
struct OwnStream {
  StreamKind kind;
  cudaStream_t handle;
  std::optional<int> sms;  ///< that the driver granted
  std::unique_ptr<CudaMarkers> markers;
  std::uint64_t marked = 0;  ///< number of the last marker

  static std::unique_ptr<OwnStream> take(const StreamKind& kind);
  static void give_back(std::unique_ptr<OwnStream> stream);
};

/// A job's streams: its main one and those that it opens.
class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(const StreamKind& kind);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;  // owns streams
  CudaStream& operator=(const CudaStream&) = delete;

  c10::cuda::CUDAStream torchs() const;
  std::optional<int> sms() const { return sms_; }
  /// Another stream of the same kind, for as long as the job runs; beyond kMaxOpen the existing ones are reused in
  /// turn. Null during a capture. The job's own thread.
  cudaStream_t open();
  /// While capturing, no markers are recorded.
  void set_capturing(bool capturing);
  /// Ends a capture that has failed, without its graph.
  void abandon_capture();

  Marker record_marker() override;
  Marker passed() const override;
  void check() const override;
  std::unique_ptr<ThreadScope> use() override;
  void synchronize() override;
  Stamp stamp() override;
  std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) override;
  std::size_t stamps() const override { return kStamps; }

 private:
  static constexpr std::size_t kStamps = 4096;
  static constexpr std::size_t kMaxOpen = 32;  // as in torch's pools; each marker is recorded on each of them

  struct Member {
    std::unique_ptr<OwnStream> stream;
    std::uint64_t offset;  // its marker number minus ours
  };

  void add(const StreamKind& kind);
  bool is_capturing() const;

  mutable std::mutex mutex_;  // guards members_, latest_, capturing_ and the order of markers
  std::vector<Member> members_;
  Marker latest_ = 0;
  bool capturing_ = false;
  const cudaStream_t main_;
  std::optional<int> sms_;
  // The job's own thread only.
  std::vector<cudaEvent_t> events_;  // a ring, created on demand
  Stamp last_stamp_ = 0;
  std::size_t opened_ = 0;
};

}  // namespace torchshare
