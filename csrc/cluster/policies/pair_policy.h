#pragma once

#include "cluster/placing.h"
#include "model/pair.h"

namespace torchshare {

/// Pair sharing and suspension, in any order of jobs. A job takes, in this order: free GPUs; GPUs of jobs with which it
/// is `worth_sharing`; GPUs of jobs that rank behind it, which it suspends. Sharing jobs migrate when GPUs free up,
/// and split ones that are alone start again whole.
class PairPolicy : public ClusterPolicy {
 public:
  void schedule(Cluster& cluster) override;

 protected:
  /// The speed that `other`, now at `speed`, loses if it shares so; 0 if it is already that slow.
  static double loss(const Cluster& cluster, JobId other, double speed, const SplitSize& split);

 private:
  class Room;

  /// Whether a waiting job is to share with `other`, which would run at `speed` without it.
  virtual bool worth_sharing(const Cluster& cluster, JobId job, JobId other, double speed,
                             const PairSplits& splits) const = 0;

  bool start_shared(Cluster& cluster, JobId job) const;
  bool make_room(Cluster& cluster, JobId job) const;
  void spread(Cluster& cluster) const;
};

}  // namespace torchshare
