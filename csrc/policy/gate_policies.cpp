#include "model/named.h"
#include "policy/best_fit_policy.h"
#include "policy/edf_policy.h"
#include "policy/gate_policy.h"
#include "policy/max_wait_policy.h"
#include "policy/priority_only_policy.h"
#include "policy/resource_aware_policy.h"
#include "policy/run_ahead_policy.h"
#include "policy/strict_policy.h"

namespace torchshare {
namespace {

using GateMaker = std::unique_ptr<GatePolicy> (*)(const GatePolicyOptions&);

// A new policy is one file and one line here.
constexpr Named<GateMaker> kGatePolicies[] = {
    {"best_fit",
     [](const GatePolicyOptions& options) -> std::unique_ptr<GatePolicy> {
       return std::make_unique<BestFitPolicy>(options.grace);
     }},
    {"edf", [](const GatePolicyOptions&) -> std::unique_ptr<GatePolicy> { return std::make_unique<EdfPolicy>(); }},
    {"priority",
     [](const GatePolicyOptions&) -> std::unique_ptr<GatePolicy> { return std::make_unique<PriorityOnlyPolicy>(); }},
    {"resource",
     [](const GatePolicyOptions& options) -> std::unique_ptr<GatePolicy> {
       return std::make_unique<ResourceAwarePolicy>(options.grace);
     }},
    {"strict",
     [](const GatePolicyOptions& options) -> std::unique_ptr<GatePolicy> {
       return std::make_unique<StrictPolicy>(options.grace);
     }},
};

}  // namespace

std::vector<std::string_view> gate_policy_names() {
  return names_of(kGatePolicies);
}

std::unique_ptr<GatePolicy> make_gate_policy(std::string_view name, const GatePolicyOptions& options) {
  auto policy = find_named(kGatePolicies, "policy", name)(options);
  if (options.run_ahead) {
    policy = std::make_unique<RunAheadPolicy>(std::move(policy), *options.run_ahead);
  }
  return options.max_wait ? std::make_unique<MaxWaitPolicy>(std::move(policy), *options.max_wait) : std::move(policy);
}

}  // namespace torchshare
