#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "gate/gate.h"
#include "model/job_id.h"

namespace torchshare {

/// What limits lower jobs, by the job that they must not disturb. A `Rule` has a `pace`, which the gate applies until
/// its job ends, and `stats`. Of several paces, the gate applies the one with the smallest share; once that has
/// expired, another one from its job's next step or answer on. Not thread-safe.
template <class Rule>
class PaceRules {
 public:
  /// `keep`: rules of ended jobs.
  PaceRules(std::size_t keep, Gate& gate) : keep_(keep), gate_(gate) {}

  bool empty() const { return entries_.empty(); }
  /// Null if the job has none.
  const Rule* find(JobId job) const {
    const auto known = entries_.find(job);
    return known == entries_.end() ? nullptr : &known->second.rule;
  }
  /// Adds a rule, in place of the one that the job may have.
  Rule& set(JobId job, Rule rule) {
    std::map<JobId, Entry> made;  // nothing has changed if there is no memory for it
    made.try_emplace(job, Entry{std::move(rule)});
    entries_.erase(job);
    return entries_.insert(made.extract(job)).position->second.rule;
  }
  /// Calls `change(rule, applied)` for the rule of a job that has one, with the pace that the gate has applied until
  /// now. Without `counts`, its pace is left out.
  template <class Change>
  void update(JobId job, std::chrono::nanoseconds now, bool counts, Change change) {
    Entry& entry = entries_.at(job);
    entry.counts = counts;
    change(entry.rule, std::as_const(applied_));
    apply(now);
  }
  void end(JobId job, std::chrono::nanoseconds now) noexcept {
    const auto known = entries_.find(job);
    if (known == entries_.end()) {
      return;
    }
    known->second.has_ended = true;
    apply(now);
    const auto ended = [](const auto& each) { return each.second.has_ended; };
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
    bool counts = true;
    bool has_ended = false;
  };

  void apply(std::chrono::nanoseconds now) {
    Pace strictest;
    for (const auto& [job, entry] : entries_) {
      const Pace& pace = entry.rule.pace();
      if (entry.counts && !entry.has_ended && now < pace.until && pace.share < strictest.share) {
        strictest = pace;
      }
    }
    if (strictest != applied_) {
      applied_ = strictest;
      gate_.set_pace(strictest);
    }
  }

  const std::size_t keep_;
  Gate& gate_;
  Pace applied_;
  std::map<JobId, Entry> entries_;
};

}  // namespace torchshare
