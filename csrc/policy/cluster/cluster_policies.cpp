#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <utility>

#include "policy/cluster/cluster_policy.h"
#include "policy/cluster/policies.h"

namespace torchshare {
namespace {

using Maker = std::unique_ptr<ClusterPolicy> (*)();

// A new policy is one file, its line in policies.h and one line here.
constexpr std::pair<std::string_view, Maker> kPolicies[] = {
    {"fifo", make_fifo},
    {"fifo-backfill", make_fifo_backfill},
    {"sjf", make_sjf},
    {"srtf", make_srtf},
    {"srsf", make_srsf},
    {"tiresias", make_tiresias},
    {"sjf-ffs", make_sjf_ffs},
    {"sjf-bsbf", make_sjf_bsbf},
    {"pair-srsf", make_pair_srsf},
};

}  // namespace

std::vector<std::string_view> cluster_policy_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, maker] : kPolicies) {
    names.push_back(name);
  }
  return names;
}

std::unique_ptr<ClusterPolicy> make_cluster_policy(std::string_view name) {
  for (const auto& [known, maker] : kPolicies) {
    if (known == name) {
      return maker();
    }
  }
  throw std::invalid_argument(
      fmt::format("cluster policy '{}': expected one of {}", name, fmt::join(cluster_policy_names(), ", ")));
}

}  // namespace torchshare
