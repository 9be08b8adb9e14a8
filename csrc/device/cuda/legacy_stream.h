#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <string>

namespace torchshare {

/// What a job launches on CUDA's legacy default stream past torch, as cupy, numba and many kernels of extensions do.
/// Any thread.
///
/// Note [The legacy stream]
/// In plain torch it is the current stream, so such work and torch's are in order. A job's streams neither wait for it
/// nor make it wait: else all jobs would wait for each other. So each job looks, before one op in `kSparse`, whether
/// that stream has work which came after what the program had launched before the job; before each op, once the job has
/// given a tensor to another library. An op waits for the work that was seen before it. Once it is sure that it was no
/// copy that a library makes at its start, the job's ops and that stream wait for each other: two events per op, which
/// other jobs do not pay. The driver does not tell who has launched the work. A job that has given out tensors is
/// likely, so the others take it for that job's; where none has, each job that sees the work waits for it, which costs
/// time, where not waiting would cost right numbers.
class LegacyStream {
 public:
  static constexpr cudaStream_t kHandle = nullptr;

  /// `job`: its name, for the warning.
  LegacyStream(c10::DeviceIndex device, std::string job);
  ~LegacyStream();
  LegacyStream(const LegacyStream&) = delete;  // owns events
  LegacyStream& operator=(const LegacyStream&) = delete;

  /// What has been launched there comes before later work of `stream`, and counts as the program's.
  void precede(cudaStream_t stream);
  /// The thread gives a tensor to code that may launch there: what it launches comes after the work of `current`.
  /// Returns as `before_op`.
  bool give_out(cudaStream_t current);
  /// Called before an op on `current`. Returns true, once, when work of the job has been found there.
  bool before_op(cudaStream_t current);
  /// Called after an op on `current`.
  void after_op(cudaStream_t current) noexcept;
  /// As `before_op`, but looks in any case.
  bool look(cudaStream_t current);

 private:
  static constexpr int kSparse = 16;        // ops
  static constexpr int kCloseLooks = 1024;  // before so many ops, after work was seen
  static constexpr int kSightings = 3;      // within these

  bool is_anothers() const;
  bool is_sure();
  void warn() const;
  /// `second` waits for what is in `first` now. The device is current.
  void order(cudaEvent_t by, cudaStream_t first, cudaStream_t second);

  const c10::DeviceIndex device_;
  const std::string job_;
  std::atomic<bool> is_found_{false};
  std::atomic<bool> gives_out_{false};
  std::atomic<int> look_in_{kSparse};  // ops
  std::atomic<int> close_looks_{0};    // left
  std::atomic<int> sightings_{0};
  std::mutex mutex_;  // guards that an event is recorded and waited for by one thread at a time
  cudaEvent_t event_ = nullptr;
  cudaEvent_t known_ = nullptr;  // until it is done, the stream has the program's work, or waits for the job's
};

}  // namespace torchshare
