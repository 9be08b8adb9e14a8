#pragma once

#include <pybind11/typing.h>

#include <string>
#include <vector>

#include "bindings/typed.h"

namespace torchshare::bindings {

/// Python code that holds locks or unfinished state of the whole process: a job is not unwound inside it. Each entry is
/// a prefix of "module.function".
class ProcessCode {
 public:
  /// `with_turn`: code that does so only while the thread has a turn (see Turns).
  ProcessCode(std::vector<std::string> always, std::vector<std::string> with_turn)
      : always_(std::move(always)), with_turn_(std::move(with_turn)) {}

  /// Whether this thread runs such code in any of its frames. With the GIL.
  bool is_run_here() const;
  /// Raises an exception of `type` in the thread before its next bytecode, unless it runs such code: then returns
  /// false. None takes back what has not been raised. Only while the world is stopped.
  bool raise_in(unsigned long thread, const pybind11::typing::Optional<ExceptionType>& type) const;

 private:
  /// Runs no Python, so the answer is valid until the world continues.
  bool is_run_by(PyThreadState& thread) const;

  std::vector<std::string> always_;
  std::vector<std::string> with_turn_;
};

}  // namespace torchshare::bindings
