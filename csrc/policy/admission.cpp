#include "policy/admission.h"

#include <algorithm>

namespace torchshare {

std::chrono::nanoseconds Admission::left_of(const AdmissionRecord& record) const {
  return std::max(record.expected_end - now_, std::chrono::nanoseconds(0));
}

Unit Admission::unit_of(const JobSnapshot& job) const {
  return {.due = job.unit.deadline == kNever ? kNever : job.unit.deadline - now_, .job = job.job};
}

void Admission::add(const Standing& standing, AdmissionRecord& record, const JobSnapshot& seen) {
  is_concerned_ |= policy_.concerns(standing_, standing);
  Competitor competitor{.priority = standing.priority,
                        .inside = seen.inside,
                        .idle = seen.idle,
                        .answering = seen.answering,
                        .quiet = record.quiet.look(seen.activity, now_),
                        .waits = record.waits,
                        .unit = unit_of(seen),
                        .until_release = seen.unit.release == kNever ? kNever : seen.unit.release - now_};
  if (policy_.forecasts()) {
    if (!seen.inside && seen.gap.mean.count() > 0) {
      competitor.gap = seen.gap;
      competitor.quiet = seen.left_at ? now_ - *seen.left_at : competitor.quiet;
    }
    competitor.op = seen.op;
    competitor.kind = seen.kind;
    competitor.left = left_of(record);
  }
  competitors_.push_back(competitor);
}

Verdict Admission::decide(const AdmissionRecord& record, const JobSnapshot& self,
                          std::chrono::nanoseconds waited) const {
  if (!is_concerned_) {
    return {.admit = true, .retry_after = {}};
  }
  return policy_.decide({.priority = standing_.priority,
                         .op = self.op,
                         .is_guess = self.is_guess,
                         .waited = waited,
                         .kind = self.kind,
                         .ahead = self.ahead,
                         .left = left_of(record),
                         .unit = unit_of(self)},
                        competitors_);
}

}  // namespace torchshare
