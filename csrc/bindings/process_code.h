#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace torchshare::bindings {

/// Python code that holds locks or unfinished state of the whole process: a job is not unwound inside it. Each entry is
/// a prefix of "module.function".
class ProcessCode {
 public:
  explicit ProcessCode(std::vector<std::string> beginnings) : beginnings_(std::move(beginnings)) {}

  /// Whether the thread with that Python id runs such code in any of its frames. Runs no Python, so the answer is valid
  /// as long as the caller holds the GIL.
  bool is_run_by(unsigned long thread) const;

 private:
  bool has(const pybind11::handle& frame) const;

  const std::vector<std::string> beginnings_;
};

}  // namespace torchshare::bindings
