#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <utility>

#include "policy/gate_policy.h"
#include "policy/priority_only_policy.h"
#include "policy/strict_policy.h"

namespace torchshare {
namespace {

using Maker = std::unique_ptr<GatePolicy> (*)(const GatePolicyOptions&);

// A new policy is one file and one line here.
constexpr std::pair<std::string_view, Maker> kPolicies[] = {
    {"priority",
     [](const GatePolicyOptions&) -> std::unique_ptr<GatePolicy> { return std::make_unique<PriorityOnlyPolicy>(); }},
    {"strict",
     [](const GatePolicyOptions& options) -> std::unique_ptr<GatePolicy> {
       return std::make_unique<StrictPolicy>(options.grace);
     }},
};

}  // namespace

std::vector<std::string_view> gate_policy_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, maker] : kPolicies) {
    names.push_back(name);
  }
  return names;
}

std::unique_ptr<GatePolicy> make_gate_policy(std::string_view name, const GatePolicyOptions& options) {
  for (const auto& [known, maker] : kPolicies) {
    if (known == name) {
      return maker(options);
    }
  }
  throw std::invalid_argument(
      fmt::format("policy '{}': expected one of {}", name, fmt::join(gate_policy_names(), ", ")));
}

}  // namespace torchshare
