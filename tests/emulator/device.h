#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

namespace emulator {

/// What the environment says of the devices. README.md lists the variables.
struct Settings {
  int devices;
  int slots;                        ///< kernels that run at the same time on a device
  std::chrono::nanoseconds kernel;  ///< modelled duration of a kernel
  std::chrono::nanoseconds jitter;  ///< a quarter of all work starts up to this much later
  std::size_t memory;               ///< bytes of the device
  std::size_t queue;                ///< entries of a stream's queue; the host waits where it is full
  bool trace;                       ///< calls that fail are printed

  static const Settings& get();
};

/// The calling thread's current device, as of cudaSetDevice.
int& current_device();

/// What an emulated device says of itself: compute capability 9.0, the newest that torch's kernels know everywhere.
constexpr int kMultiprocessors = 132;
constexpr int kLowestPriority = 0;
constexpr int kHighestPriority = -5;
constexpr int kVersion = 13000;

/// A device's places for running kernels. A claim is a place in the line: the highest priority first, then the oldest
/// claim. A stream whose next kernel is waiting claims before it releases, as a GPU's queues do: were it to release
/// first, a kernel of lower priority could always slip in between two of a higher one. Any thread.
class Slots {
 public:
  using Claim = std::pair<int, std::uint64_t>;  // CUDA's priority (lower is more urgent), number

  static Slots& of(int device);
  Claim claim(int priority);
  /// Waits until a slot is free and `claim` is the first in line.
  void take(const Claim& claim);
  void release();

 private:
  std::mutex mutex_;  // guards every field below
  std::condition_variable changed_;
  int busy_ = 0;
  std::uint64_t last_ = 0;
  std::set<Claim> line_;
};

/// Every device is lost after an error in a kernel of one: no kernel runs any more, and every call that touches the
/// device returns that error (a "sticky" error: docs.nvidia.com/cuda/cuda-runtime-api, group__CUDART__TYPES,
/// cudaErrorAssert: "This leaves the process in an inconsistent state and any further CUDA work will return the same
/// error"). Any thread.
void lose_device(int error);
/// The error by which the device was lost, or 0.
int lost_by();
void restore_device();

/// A number from 0 to `below` - 1, from this thread's sequence.
std::uint64_t random_number(std::uint64_t below);

}  // namespace emulator
