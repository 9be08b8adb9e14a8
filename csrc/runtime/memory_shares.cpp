#include "runtime/memory_shares.h"

#include <algorithm>
#include <optional>

namespace torchshare {

void MemoryShares::join(Entry entry) {
  std::lock_guard lock(mutex_);
  members_.push_back(std::move(entry));
  try {
    divide();
  } catch (...) {
    members_.pop_back();
    throw;
  }
}

void MemoryShares::leave(const MemoryBudget& budget) {
  std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const Entry& entry) { return entry.budget.get() == &budget; });
  divide();
}

void MemoryShares::divide() {
  const std::optional<std::int64_t> free_now = device_.free_memory();
  if (!free_now || members_.empty()) {
    return;
  }
  const auto members = static_cast<std::int64_t>(members_.size());
  std::int64_t promised = 0;
  std::int64_t sharing = 0;
  for (const Entry& entry : members_) {
    if (entry.is_declared) {
      promised += std::clamp<std::int64_t>(entry.budget->limit() - entry.budget->held(), 0, *free_now);  // no overflow
    } else {
      ++sharing;
    }
  }
  if (promised >= *free_now) {  // cannot be kept
    promised = *free_now / members * (members - sharing);
  }
  for (const Entry& entry : members_) {
    if (!entry.is_declared) {
      const std::int64_t share = (*free_now - promised) / sharing;
      entry.budget->set_limit(members == 1 ? MemoryBudget::kUnlimited : entry.budget->held() + share);
      entry.on_change();
    }
  }
}

}  // namespace torchshare
