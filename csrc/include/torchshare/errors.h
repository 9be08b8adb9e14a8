#pragma once

#include <c10/util/Exception.h>

#include <stdexcept>

namespace torchshare {

/// Unwinds a cancelled job at an op boundary.
class Cancelled : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A job requested more memory than remains in its budget. A torch.OutOfMemoryError, raised in that job only.
class BudgetExceeded final : public c10::OutOfMemoryError {
  using c10::OutOfMemoryError::OutOfMemoryError;
};

}  // namespace torchshare
