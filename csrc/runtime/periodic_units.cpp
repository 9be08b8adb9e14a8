#include "runtime/periodic_units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

}  // namespace

void PeriodicUnits::open(const PeriodicTask& task, nanoseconds now) {
  task_ = task;
  release_ = now;
  is_open_ = true;
  {
    std::lock_guard lock(mutex_);
    if (!stats_) {
      stats_.emplace();
    }
  }
  gate_.set_periodic(slot_, true);
}

void PeriodicUnits::close() {
  if (std::exchange(is_open_, false)) {
    gate_.end_unit(slot_, nanoseconds(0), kNever);
    gate_.set_periodic(slot_, false);
  }
}

nanoseconds PeriodicUnits::next_release(nanoseconds now) {
  if (const auto late = now - (release_ + task_.deadline); late >= nanoseconds(0)) {
    const auto skipped = late / task_.period + 1;
    release_ += skipped * task_.period;
    std::lock_guard lock(mutex_);
    stats_->skipped += static_cast<std::uint64_t>(skipped);
  }
  return release_;
}

void PeriodicUnits::begin(nanoseconds now, nanoseconds at_gate) {
  began_ = now;
  at_gate_ = at_gate;
  gate_.begin_unit(slot_, release_ + task_.deadline);
  beside_ = fmt::format("{}", fmt::join(gate_.others_inside(slot_), ", "));
}

nanoseconds PeriodicUnits::end(nanoseconds now, nanoseconds at_gate) {
  const nanoseconds waited = at_gate - at_gate_;
  const nanoseconds service = now - began_ - waited;
  const nanoseconds late = now - (release_ + task_.deadline);
  {
    std::lock_guard lock(mutex_);
    stats_->response.add(now - release_);
    if (late <= nanoseconds(0)) {
      ++stats_->met;
      stats_->slack.add(-late);
    } else {
      ++stats_->missed;
      stats_->worst_lateness = std::max(stats_->worst_lateness, late);
      stats_->misses.push_back(cause(late, service, waited));
      if (stats_->misses.size() > kKeptMisses) {
        stats_->misses.pop_front();
      }
    }
  }
  gate_.end_unit(slot_, now - began_, release_ + task_.period);
  release_ += task_.period;
  return service;
}

/// Names the largest part of the time that the unit took beyond its cost.
std::string PeriodicUnits::cause(nanoseconds late, nanoseconds service, nanoseconds waited) const {
  const nanoseconds began_late = began_ - release_;
  const nanoseconds too_long = service - task_.cost;
  const std::string beside = beside_.empty() ? "" : fmt::format(", and began beside an op of {}", beside_);
  if (waited >= too_long && waited >= began_late) {
    return fmt::format("{:.1f} ms late: it waited {:.1f} ms at the gate for other periodic jobs", to_milliseconds(late),
                       to_milliseconds(waited));
  }
  if (began_late > too_long) {
    return fmt::format("{:.1f} ms late: it began {:.1f} ms after its release", to_milliseconds(late),
                       to_milliseconds(began_late));
  }
  const std::string expected =
      task_.cost > nanoseconds(0) ? fmt::format(" instead of {:.1f}", to_milliseconds(task_.cost)) : std::string();
  return fmt::format("{:.1f} ms late: it took {:.1f} ms{}{}", to_milliseconds(late), to_milliseconds(service), expected,
                     beside);
}

std::optional<PeriodStats> PeriodicUnits::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace torchshare
