#include "cluster/policies/policies.h"
#include "cluster/policies/shortest_first.h"

namespace torchshare {
namespace {

/// Shortest job first, without sharing.
class Sjf final : public ShortestFirst {
  bool start_shared(Cluster&, JobId) const override { return false; }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf() {
  return std::make_unique<Sjf>();
}

}  // namespace torchshare
