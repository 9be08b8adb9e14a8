#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace torchshare::bindings {

/// Python code that holds locks, or half-made state, of the whole process: a job is not unwound inside it. Each entry
/// is the beginning of "module.function".
class ProcessCode {
 public:
  explicit ProcessCode(std::vector<std::string> beginnings) : beginnings_(std::move(beginnings)) {}

  /// Whether the thread of that (Python's) name runs such code, in any of its frames. Runs no Python, so the answer
  /// holds as long as the caller keeps the interpreter lock.
  bool is_run_by(unsigned long thread) const;

 private:
  bool has(const pybind11::handle& frame) const;

  const std::vector<std::string> beginnings_;
};

}  // namespace torchshare::bindings
