#pragma once

#include <compare>

#include "model/time.h"

namespace torchshare {

/// The group of a job that shares with none.
inline constexpr int kAlone = -1;

/// How the memory and the step time of a job depend on its number s of sub-batches, relative to whole batches:
/// memory m0 + m1 B / s, step time s alpha + beta B.
struct SplitModel {
  double fixed_memory = 0.3;  ///< m0 / (m0 + m1 B): does not scale with the sub-batch
  double fixed_time = 0.05;   ///< alpha / (alpha + beta B): cost of each further sub-batch
  int most = 8;               ///< the maximum of s; s is a power of two

  double memory(int sub_batches) const { return fixed_memory + (1 - fixed_memory) / sub_batches; }
  double time(int sub_batches) const { return 1 + fixed_time * (sub_batches - 1); }
  auto operator<=>(const SplitModel&) const = default;
};

/// One job of a cluster's workload. Its GPUs run together or not at all (a gang).
struct WorkloadJob {
  Seconds arrival = 0;
  Seconds duration = 0;  ///< alone, in whole batches
  int gpus = 1;
  double memory_gib = 0;             ///< per GPU, in whole batches; 0: unknown
  int model = 0;                     ///< its row of the interference table
  int priority = 0;                  ///< waiting jobs of lower values come first, whatever the policy
  int group = 0;                     ///< it shares with jobs of its group only
  SplitModel split = {};             ///< while it shares
  Seconds deadline = kNeverVirtual;  ///< after its arrival, by which it must have ended
  int user = 0;                      ///< whose job it is, from 0 on
};

}  // namespace torchshare
