#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

// Measurements of a job in an earlier run.

namespace torchshare {

/// A time that is measured repeatedly: its mean and its mean absolute deviation, in nanoseconds. A new value has a
/// weight of at least a sixteenth, so old times are forgotten.
struct OpTime {
  static constexpr std::uint32_t kEnough = 5;

  double mean = 0;
  double spread = 0;
  std::uint32_t count = 0;

  bool known() const { return count >= kEnough; }
  /// Outliers are clamped at mean + 8 spreads: one preemption changes little, many do.
  void add(double value);

  bool operator==(const OpTime&) const = default;
};

/// One op at its place in the step: its name, shapes and dtypes, and the ops before it.
struct OpProfile {
  std::uint64_t signature = 0;  ///< of the op
  std::uint64_t context = 0;    ///< hash of the op and those before it: its place in the step
  std::string text = {};        ///< readable signature; empty if the op was seen only once
  OpTime duration = {};         ///< FIKIT's SK
  OpTime gap = {};              ///< FIKIT's SG: from its end to the begin of the next op

  bool operator==(const OpProfile&) const = default;
};

/// A job's step time alone, and its interference ratios beside other jobs by the names of their profiles.
struct ProfiledJob {
  struct Ratios {
    double own;
    double other;
    /// The largest fraction of the time in which the other may run without breaking the job's promise about its
    /// requests; empty if it has promised nothing.
    std::optional<double> share = {};
  };
  std::string name;
  double step = 0;  ///< seconds
  std::map<std::string, Ratios> beside = {};
  bool answers = false;  ///< its profile is of requests, and `step` is the time that one takes
};

}  // namespace torchshare
