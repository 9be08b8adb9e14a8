#include "policy/resource_aware_policy.h"

#include <algorithm>
#include <vector>

namespace torchshare {

Verdict ResourceAwarePolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  const auto leaves_room = [&](const Competitor& competitor) {
    return competitor.inside && requester.op && requester.kind != OpKind::kUnknown &&
           competitor.kind != OpKind::kUnknown && requester.kind != competitor.kind;
  };
  std::vector<Competitor> in_the_way;
  std::copy_if(competitors.begin(), competitors.end(), std::back_inserter(in_the_way),
               [&](const Competitor& competitor) { return !leaves_room(competitor); });
  return gaps_.decide(requester, in_the_way);
}

}  // namespace torchshare
