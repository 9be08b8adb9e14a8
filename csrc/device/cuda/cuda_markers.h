#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace torchshare {

/// Markers on one stream: recorded by any thread, one at a time, and reached by the device in order.
class CudaMarkers {
 public:
  virtual ~CudaMarkers() = default;
  /// Records marker `number`, one more than the last, after everything launched so far.
  virtual void record(std::uint64_t number) = 0;
  /// The latest marker that the device has reached. Any thread.
  virtual std::uint64_t passed() const = 0;
};

/// The device writes the marker's number into pinned memory (cuStreamWriteValue32): `passed` reads one word.
std::unique_ptr<CudaMarkers> make_written_markers(cudaStream_t stream);
/// Events, in a ring: to look is a call into the driver. What measure_marks compares with.
std::unique_ptr<CudaMarkers> make_event_markers(cudaStream_t stream);

}  // namespace torchshare
