#include "gate/op_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kMaxRecorded = 1 << 17;
constexpr std::uint64_t kSampled = 64;  // one in this many known ops is timed anyway
constexpr double kUnknownOp = 0.95;     // an unknown op is expected to be no longer than this share of all ops

double count(nanoseconds time) {
  return static_cast<double>(time.count());
}

template <class Value>
void add_to(std::atomic<Value>& total, Value amount) {
  total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);  // one writer
}

}  // namespace

OpWatch::OpWatch(Slot& slot, Gate& gate, Clock& clock, WatchOptions options)
    : slot_(slot), gate_(gate), clock_(clock), options_(std::move(options)), chain_(options_.known) {}

void OpWatch::follow(const std::shared_ptr<DeviceStream>& stream) {
  times_ = std::make_unique<DeviceTimes>(stream);
  ahead_ = std::make_unique<RunAhead>(stream);
  slot_.ahead = ahead_.get();
}

void OpWatch::unfollow() noexcept {
  try {
    if (times_ != nullptr) {
      settle();
    }
  } catch (const std::exception&) {
    // The device failed, and so did the job: its last ops stay untimed.
  }
  slot_.ahead = nullptr;
  ahead_.reset();
  times_.reset();
}

/// Learns from the ops that the device has finished since.
void OpWatch::settle() {
  while (const auto timed = times_->next()) {
    if (OpChain::Place* const before = timed->gap ? chain_.find(timed->before) : nullptr) {
      before->profile.gap.add(count(*timed->gap));
    }
    if (OpChain::Place* const place = chain_.find(timed->context)) {
      place->profile.duration.add(count(timed->duration));
    }
    durations_.add(timed->duration);
    if (options_.record && trace_.ops.size() < kMaxRecorded) {
      trace_.ops.push_back({timed->context, count(timed->gap.value_or(nanoseconds(0))), 0, count(timed->duration)});
    }
  }
}

OpChain::Place& OpWatch::advance(std::uint64_t signature) {
  if (failure_ != nullptr) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  if (times_ != nullptr) {
    settle();
  }
  const bool filled = (slot_.interrupts.load(std::memory_order_relaxed) & kFilled) != 0;
  lower_ = gate_.is_lower(slot_);
  now_.reset();
  if (left_at_ || filled || options_.record) {
    now_ = clock_.now();
    count_idle(*now_);
  }
  gap_ = left_at_ ? *now_ - *left_at_ : nanoseconds(0);
  if (left_at_) {
    // If the job computed in the gap, a lower job in it may have made it longer, never shorter.
    const bool longer = filled && !was_idle_;
    if (OpTime& gap = chain_.here().profile.gap; !longer || !gap.known() || count(gap_) < gap.mean) {
      gap.add(count(gap_));
    }
    left_at_.reset();
  }
  if (filled) {
    slot_.interrupts.fetch_and(~kFilled, std::memory_order_acq_rel);
    add_to(counters_.gaps_filled, std::uint64_t{1});
  }
  if ((filled || overlapped_) && !lower_) {
    const bool returned = filled && gate_.is_filled();
    add_to(counters_.returns_into_filler, std::uint64_t{returned});
    overlapped_ = gate_.is_filled();
  }
  if (std::exchange(restarts_, false)) {
    chain_.restart();
  }
  OpChain::Place& place = chain_.advance(signature);
  sampled_ = options_.record || mix(1, counters_.ops.load(std::memory_order_relaxed)) % kSampled == 0;
  if (lower_) {
    expect_op(place.profile);
  }
  return place;
}

void OpWatch::expect_op(const OpProfile& profile) {
  std::int64_t expected = -1;
  if (profile.duration.known()) {
    expected = std::llround(profile.duration.mean + profile.duration.spread);
  } else if (const auto others = durations_.quantile(kUnknownOp)) {
    expected = others->count();
  }
  slot_.next_op.store(expected, std::memory_order_relaxed);
  slot_.is_guess.store(!profile.duration.known(), std::memory_order_relaxed);
}

void OpWatch::begin() {
  if (times_ != nullptr) {
    const OpProfile& profile = chain_.here().profile;
    times_->begin(sampled_ || gap_wanted_ || !profile.duration.known());
    if (lower_) {
      gate_.begin_filling();
    }
  } else if (lower_) {
    begin_ = clock_.now();
    gate_.begin_filling();
  } else if (sampled_ || overlapped_ || !chain_.here().profile.duration.known()) {
    begin_ = now_ ? *now_ : clock_.now();
  } else {
    begin_.reset();
  }
}

void OpWatch::end() noexcept {
  OpProfile& profile = chain_.here().profile;
  now_.reset();
  try {
    if (begin_) {
      now_ = clock_.now();
      record(*now_ - *begin_);
    }
    if (times_ != nullptr) {
      end_on_device(profile);
    }
  } catch (const std::exception&) {
    failure_ = std::current_exception();  // raised at the next op
  }
  const OpTime& gap = profile.gap;
  idle_ = nanoseconds(0);
  was_idle_ = idle_since_.has_value();
  add_to(counters_.ops, std::uint64_t{1});
  add_to(counters_.unknown_ops, std::uint64_t{!gap.known() || !profile.duration.known()});
  add_to(counters_.capacity, static_cast<std::int64_t>(gap.mean));
  if (times_ == nullptr && (sampled_ || !gap.known() || gap.mean >= count(options_.shortest_gap))) {
    left_at_ = now_ ? *now_ : clock_.now();
  }
  const bool opens = publish_gap(gap);
  slot_.leave();
  if (lower_) {
    gate_.end_filling();
  }
  if (opens) {
    gate_.gap_opened();
  }
}

void OpWatch::end_on_device(const OpProfile& profile) {
  constexpr nanoseconds kUnknown = std::chrono::microseconds(20);  // assumed for an unknown op
  times_->end(profile.context);
  gap_wanted_ = sampled_ || !profile.gap.known();
  if (lower_) {
    const std::int64_t expected = slot_.next_op.load(std::memory_order_relaxed);
    const nanoseconds launched = expected >= 0 ? nanoseconds(expected) : kUnknown;
    ahead_->launched(launched);
    add_to(counters_.filled, launched.count());
  }
}

void OpWatch::record(nanoseconds duration) {
  OpProfile& profile = chain_.here().profile;
  if (overlapped_) {
    const auto mean = static_cast<std::int64_t>(profile.duration.mean);
    add_to(counters_.cost, profile.duration.known() ? std::max<std::int64_t>(0, duration.count() - mean) : 0);
  } else {
    profile.duration.add(count(duration));
  }
  durations_.add(duration);
  if (lower_) {
    add_to(counters_.filled, duration.count());
  }
  if (options_.record && trace_.ops.size() < kMaxRecorded) {
    trace_.ops.push_back(
        {profile.context, count(gap_), count(std::min(idle_, gap_)), count(duration), chain_.here().kind});
  }
}

/// Returns whether there is a gap to fill. See Note [Free exit].
bool OpWatch::publish_gap(const OpTime& gap) {
  const bool opens = gate_.fills_gaps() && gap.known() && gap.mean >= count(options_.shortest_gap);
  if (opens) {
    slot_.left_at.store(left_at_.value_or(nanoseconds(0)).count(), std::memory_order_release);
    slot_.gap_spread.store(static_cast<std::int64_t>(gap.spread), std::memory_order_release);
    slot_.gap_mean.store(static_cast<std::int64_t>(gap.mean), std::memory_order_release);
    add_to(counters_.gaps_opened, std::uint64_t{1});
  } else if (published_) {
    slot_.gap_mean.store(0, std::memory_order_release);
  }
  published_ = opens;
  return opens;
}

GapForecast OpWatch::next_gap() {
  const OpTime& gap = chain_.here().profile.gap;
  return gap.known() ? GapForecast{nanoseconds(std::llround(gap.mean)), nanoseconds(std::llround(gap.spread))}
                     : GapForecast{};
}

void OpWatch::begin_idle(nanoseconds now) {
  idle_since_ = now;
  was_idle_ = true;
}

void OpWatch::end_idle(nanoseconds now) {
  count_idle(now);
  idle_since_.reset();
}

/// Adds the part of the gap so far that was spent waiting for input.
void OpWatch::count_idle(nanoseconds now) {
  if (idle_since_) {
    idle_ += now - std::max(*idle_since_, left_at_.value_or(*idle_since_));
  }
}

void OpWatch::end_step() {
  if (options_.record && trace_.ops.size() < kMaxRecorded) {
    trace_.step_ends.push_back(trace_.ops.size());
  }
}

GapStats OpWatch::stats() const {
  const auto get = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  return {.ops = get(counters_.ops),
          .unknown_ops = get(counters_.unknown_ops),
          .capacity = nanoseconds(get(counters_.capacity)),
          .gaps_opened = get(counters_.gaps_opened),
          .gaps_filled = get(counters_.gaps_filled),
          .returns_into_filler = get(counters_.returns_into_filler),
          .cost = nanoseconds(get(counters_.cost)),
          .filled = nanoseconds(get(counters_.filled))};
}

}  // namespace torchshare
