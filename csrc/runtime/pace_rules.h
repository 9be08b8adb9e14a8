#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "gate/gate.h"
#include "model/job_id.h"

namespace torchshare {

/// What limits lower jobs, by the job that they must not disturb. A `Rule` has a `pace`, which the gate applies until
/// its job ends, and `stats`. Not thread-safe.
template <class Rule>
class PaceRules {
 public:
  /// `keep`: rules of ended jobs.
  PaceRules(std::size_t keep, Gate& gate) : keep_(keep), gate_(gate) {}

  bool empty() const { return entries_.empty(); }
  /// Null if the job has none.
  Rule* find(JobId job) {
    const auto known = entries_.find(job);
    return known == entries_.end() ? nullptr : &known->second.rule;
  }
  /// Adds a rule unless the job has one. Applies its pace if `applies`; otherwise, that of another job stays.
  Rule& add(JobId job, Rule rule, bool applies = true) {
    Rule& added = entries_.try_emplace(job, Entry{std::move(rule)}).first->second.rule;
    if (applies) {
      gate_.set_pace(added.pace());
    }
    return added;
  }
  /// Calls `change`, and applies the rule's pace if that has changed it.
  template <class Change>
  void update(const Rule& rule, Change change) {
    const Pace former = rule.pace();
    change();
    if (rule.pace() != former) {
      gate_.set_pace(rule.pace());
    }
  }
  /// Applies the pace of another job that has not ended, or none.
  void end(JobId job) noexcept {
    const auto known = entries_.find(job);
    if (known == entries_.end()) {
      return;
    }
    known->second.has_ended = true;
    const auto ended = [](const auto& each) { return each.second.has_ended; };
    const auto other = std::find_if_not(entries_.begin(), entries_.end(), ended);
    gate_.set_pace(other == entries_.end() ? Pace{} : other->second.rule.pace());
    if (static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), ended)) > keep_) {
      entries_.erase(std::find_if(entries_.begin(), entries_.end(), ended));
    }
  }
  /// Empty if the job had no rule, or if it is not kept any more.
  auto stats(JobId job) const {
    const auto known = entries_.find(job);
    return known == entries_.end() ? std::nullopt : std::optional(known->second.rule.stats());
  }

 private:
  struct Entry {
    Rule rule;
    bool has_ended = false;
  };

  const std::size_t keep_;
  Gate& gate_;
  std::map<JobId, Entry> entries_;
};

}  // namespace torchshare
