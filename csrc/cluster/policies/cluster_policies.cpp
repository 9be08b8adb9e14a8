#include "cluster/cluster_policy.h"
#include "cluster/policies/policies.h"
#include "model/named.h"

namespace torchshare {
namespace {

using Maker = std::unique_ptr<ClusterPolicy> (*)();

// A new policy is one file, its line in policies.h and one line here.
constexpr Named<Maker> kPolicies[] = {
    {"fifo", make_fifo},
    {"fifo-backfill", make_fifo_backfill},
    {"sjf", make_sjf},
    {"srtf", make_srtf},
    {"srsf", make_srsf},
    {"tiresias", make_tiresias},
    {"sjf-ffs", make_sjf_ffs},
    {"sjf-bsbf", make_sjf_bsbf},
    {"pair-srsf", make_pair_srsf},
    {"edf", make_edf},
    {"pair-edf", make_pair_edf},
};

}  // namespace

std::vector<std::string_view> cluster_policy_names() {
  return names_of(kPolicies);
}

std::unique_ptr<ClusterPolicy> make_cluster_policy(std::string_view name) {
  return find_named(kPolicies, "cluster policy", name)();
}

}  // namespace torchshare
