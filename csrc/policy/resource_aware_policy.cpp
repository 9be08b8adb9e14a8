#include "policy/resource_aware_policy.h"

#include <algorithm>
#include <vector>

namespace torchshare {

Verdict ResourceAwarePolicy::decide(const Asker& asker, std::span<const Rival> rivals) const {
  const auto leaves_room = [&](const Rival& rival) {
    return rival.inside && asker.op && asker.kind != OpKind::kUnknown && rival.kind != OpKind::kUnknown &&
           asker.kind != rival.kind;
  };
  std::vector<Rival> in_the_way;
  std::copy_if(rivals.begin(), rivals.end(), std::back_inserter(in_the_way),
               [&](const Rival& rival) { return !leaves_room(rival); });
  return gaps_.decide(asker, in_the_way);
}

}  // namespace torchshare
