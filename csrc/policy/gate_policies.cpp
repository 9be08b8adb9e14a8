#include "policy/gate_policy.h"
#include "policy/named.h"
#include "policy/priority_only_policy.h"
#include "policy/strict_policy.h"

namespace torchshare {
namespace {

using Maker = std::unique_ptr<GatePolicy> (*)(const GatePolicyOptions&);

// A new policy is one file and one line here.
constexpr Named<Maker> kPolicies[] = {
    {"priority",
     [](const GatePolicyOptions&) -> std::unique_ptr<GatePolicy> { return std::make_unique<PriorityOnlyPolicy>(); }},
    {"strict",
     [](const GatePolicyOptions& options) -> std::unique_ptr<GatePolicy> {
       return std::make_unique<StrictPolicy>(options.grace);
     }},
};

}  // namespace

std::vector<std::string_view> gate_policy_names() {
  return names_of(kPolicies);
}

std::unique_ptr<GatePolicy> make_gate_policy(std::string_view name, const GatePolicyOptions& options) {
  return find_named(kPolicies, "policy", name)(options);
}

}  // namespace torchshare
