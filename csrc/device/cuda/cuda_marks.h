#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace torchshare {

/// Marks in one stream: put by anyone, one at a time, and passed by the device in order.
class CudaMarks {
 public:
  virtual ~CudaMarks() = default;
  /// Puts mark `number`, one more than the last, behind what was launched so far.
  virtual void put(std::uint64_t number) = 0;
  /// The latest mark that the device has come to. Any thread.
  virtual std::uint64_t passed() const = 0;
};

/// The device writes the mark's number into pinned memory (cuStreamWriteValue32): to look is to read a word.
std::unique_ptr<CudaMarks> make_written_marks(cudaStream_t stream);
/// Events, in a ring: to look is a call into the driver. What measure_marks compares with.
std::unique_ptr<CudaMarks> make_event_marks(cudaStream_t stream);

}  // namespace torchshare
