#include "policy/admission.h"

#include <algorithm>

namespace torchshare {

void Admission::add(Priority priority, AdmissionRecord& record, const JobSnapshot& seen) {
  is_concerned_ |= policy_.concerns(priority_, priority);
  Competitor competitor{.priority = priority,
                        .inside = seen.inside,
                        .idle = seen.idle,
                        .answering = seen.answering,
                        .quiet = record.quiet.look(seen.activity, now_),
                        .waits = record.waits};
  if (policy_.forecasts()) {
    if (!seen.inside && seen.gap.mean.count() > 0) {
      competitor.gap = seen.gap;
      competitor.quiet = seen.left_at ? now_ - *seen.left_at : competitor.quiet;
    }
    competitor.op = seen.op;
    competitor.kind = seen.kind;
    competitor.left =
        seen.inside ? std::max(record.expected_end - now_, std::chrono::nanoseconds(0)) : std::chrono::nanoseconds(0);
  }
  competitors_.push_back(competitor);
}

Verdict Admission::decide(const JobSnapshot& self, std::chrono::nanoseconds waited) const {
  if (!is_concerned_) {
    return {.admit = true, .retry_after = {}};
  }
  return policy_.decide(
      {.priority = priority_, .op = self.op, .waited = waited, .kind = self.kind, .ahead = self.ahead}, competitors_);
}

}  // namespace torchshare
