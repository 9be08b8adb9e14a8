#pragma once

#include "model/time.h"

namespace torchshare {

/// The group of a job that shares with none.
inline constexpr int kAlone = -1;

/// One job of a cluster's workload. Its GPUs run together or not at all (a gang).
struct WorkloadJob {
  Seconds arrival = 0;
  Seconds duration = 0;  ///< alone, in whole batches
  int gpus = 1;
  double memory_gib = 0;  ///< per GPU, in whole batches; 0: unknown
  int model = 0;          ///< its row of the interference table
  int priority = 0;       ///< waiting jobs of lower values come first, whatever the policy
  int group = 0;          ///< it shares with jobs of its group only
};

}  // namespace torchshare
