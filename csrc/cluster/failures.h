#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "cluster/gpus.h"
#include "model/time.h"

namespace torchshare {

/// A time in which neighbouring GPUs are away.
struct Outage {
  GpuId first = 0;
  int gpus = 1;
  Seconds begin = 0;
  Seconds end = kNeverVirtual;  ///< kNeverVirtual: they do not return
};

/// Means of exponential distributions. A failure takes a GPU that is drawn from the cluster, or its node.
struct FailureRates {
  Seconds between = kNeverVirtual;  ///< from one failure in the cluster to the next
  Seconds repair = 0;
  double node_share = 0;  ///< of the failures that take a whole node
  std::uint64_t seed = 0;
};

/// The outages of a cluster in order of their begin: those listed, or drawn one by one without end.
class Failures {
 public:
  /// None.
  Failures() = default;
  /// Throws std::invalid_argument for an outage without GPUs, of a negative GPU, or that does not end after its begin.
  explicit Failures(std::vector<Outage> outages);
  /// Throws std::invalid_argument unless times are positive and finite, the share is from 0 to 1, and `gpus` is a
  /// multiple of `per_node`.
  Failures(const FailureRates& rates, int gpus, int per_node);

  /// The next outage; empty if there is none.
  std::optional<Outage> next();
  /// The number of GPUs that its outages need the cluster to have.
  int gpus() const { return gpus_; }

 private:
  /// From 0 to 1, without 1. Unlike the standard's distributions, the same with every library.
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  int below(int count) { return static_cast<int>(uniform() * count); }
  Seconds exponential(Seconds mean);

  std::vector<Outage> listed_;  // the last comes first
  FailureRates rates_;
  int gpus_ = 0;
  int per_node_ = 1;
  Seconds last_ = 0;
  std::mt19937_64 random_;
};

}  // namespace torchshare
