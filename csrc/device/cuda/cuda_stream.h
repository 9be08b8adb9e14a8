#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_markers.h"
#include "device/cuda/legacy_stream.h"
#include "device/cuda/sm_part.h"
#include "device/device.h"

namespace torchshare {

/// The properties of a stream.
struct StreamKind {
  c10::DeviceIndex device = 0;
  int priority = 0;              ///< CUDA's: lower is more urgent
  const SmPart* part = nullptr;  ///< the multiprocessors that it may use; null: all

  bool operator==(const StreamKind&) const = default;
};

/// A CUDA stream with markers. Any thread.
///
/// Note [Streams are kept]
/// torch's streams come from pools of 32 that are handed out round-robin, so two jobs could share one; ours are created
/// for one job. They are not destroyed when it ends but reused by the next job of that kind: torch's allocator caches
/// blocks per stream, and tensors that outlive their job still refer to it. The markers on others' streams are kept,
/// too, because freeing their memory would wait for the device.
struct MarkedStream {
  StreamKind kind;
  cudaStream_t handle;
  bool is_ours;  ///< else torch, an extension or the driver has created it
  std::unique_ptr<CudaMarkers> markers;
  std::uint64_t marked = 0;  ///< number of the last marker

  /// One of ours.
  static std::unique_ptr<MarkedStream> take(const StreamKind& kind);
  /// One that is not.
  static std::unique_ptr<MarkedStream> take(cudaStream_t others);
  static void give_back(std::unique_ptr<MarkedStream> stream);
};

/// What had been launched on a stream when it was made.
class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(const c10::cuda::CUDAStream& stream);

  cudaEvent_t handle() const { return event_.event(); }

 private:
  at::cuda::CUDAEvent event_;
};

/// A job's streams: its main one, those that it opens, and the others that its threads have made current, such as those
/// of torch's pools, of an extension, and the legacy stream.
class CudaStream final : public DeviceStream {
 public:
  /// `job`: its name, for warnings.
  CudaStream(const StreamKind& kind, std::string job);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;  // owns streams
  CudaStream& operator=(const CudaStream&) = delete;

  c10::cuda::CUDAStream torchs() const;
  /// Another stream of the same kind, for as long as the job runs; beyond kMaxOpen those are returned again, in turn.
  /// Null during a capture. The job's own thread.
  cudaStream_t open();
  /// The job's stream on these multiprocessors, the same each time. The job's own thread, not during a capture.
  cudaStream_t open_on(const SmPart& part);
  /// Work launched from now on runs after what the event covers. Nothing waits for it here.
  void wait_for(const CudaEvent& event);
  /// The same for what the program has launched on the default stream.
  void wait_for_program() { legacy_.precede(main_); }
  /// Whether the thread's current stream is one of `open_on`.
  bool is_on_part() const;
  /// While capturing, no markers are recorded.
  void set_capturing(bool capturing);
  /// Ends a capture that has failed, without its graph.
  void abandon_capture();

  Marker record_marker() override;
  Marker passed() const override;
  bool has_work() const override;
  bool has_finished() const override;
  std::uintptr_t current() const override { return reinterpret_cast<std::uintptr_t>(current_stream()); }
  bool has_work_beside(std::uintptr_t waiting) const override;
  void check() const override;
  std::unique_ptr<ThreadScope> use() override;
  std::uintptr_t handle() const override { return reinterpret_cast<std::uintptr_t>(main_); }
  void follow_current() override;
  void end_op() noexcept override;
  void give_out() override;
  bool is_capturing() const override;
  void synchronize() override;
  Stamp stamp() override;
  std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) override;
  std::size_t stamps() const override { return kStamps; }

 private:
  static constexpr std::size_t kStamps = 4096;
  static constexpr std::size_t kMaxOpen = 32;  // as in torch's pools; each marker is recorded on each of them

  struct Member {
    std::unique_ptr<MarkedStream> stream;
    std::uint64_t offset;  // its marker number minus ours
  };
  static constexpr std::size_t kKnown = 64;

  cudaStream_t current_stream() const;
  /// Returns its handle.
  cudaStream_t add(std::unique_ptr<MarkedStream> stream);
  bool is_known(cudaStream_t stream) const;
  void add_legacy();
  void record_on(MarkedStream& stream);
  /// Forgets a stream that whoever owns it has destroyed. Under `driver_`.
  void drop(const MarkedStream& stream);
  /// The members. One that is dropped meanwhile stays in memory.
  std::vector<MarkedStream*> streams() const;

  // Held by other jobs while they call the driver, which may block. The job itself takes it to capture a graph and to
  // wait for other ranks. Guards the order of markers, changes of capturing_, and that no member is dropped.
  mutable std::mutex driver_;
  mutable std::mutex mutex_;  // guards members_ and latest_; taken after `driver_`, never around a call of the driver
  std::vector<Member> members_;
  // The handles of the first members, to be read without the lock.
  std::array<std::atomic<cudaStream_t>, kKnown> known_{};
  std::atomic<std::size_t> known_count_{0};
  Marker latest_ = 0;
  std::atomic<bool> capturing_ = false;
  const StreamKind kind_;
  LegacyStream legacy_;
  const cudaStream_t main_;
  // The job's own thread only.
  std::vector<cudaEvent_t> events_;  // a ring, created on demand
  Stamp last_stamp_ = 0;
  std::vector<cudaStream_t> open_;  // at most kMaxOpen
  std::size_t returned_again_ = 0;  // how often `open` has returned one of them again
};

}  // namespace torchshare
