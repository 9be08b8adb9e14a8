#include "runtime/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

namespace torchshare {

namespace {

constexpr std::uint64_t kWarmUpSteps = 3;  // of a job; not used to estimate slowdowns

std::optional<BoundStats> stats_of(const SlowdownBound* bound) {
  if (bound == nullptr) {
    return std::nullopt;
  }
  return BoundStats{bound->windows(), bound->windows_inside(), bound->alone(),
                    bound->loss(),    bound->pace().share,     {bound->recent().begin(), bound->recent().end()}};
}

}  // namespace

Coordinator::Coordinator(Clock& clock, Timeline& timeline, Gate& gate, std::optional<double> max_slowdown,
                         std::optional<std::size_t> resident)
    : clock_(clock),
      timeline_(timeline),
      gate_(gate),
      max_slowdown_(max_slowdown),
      resident_(resident),
      sharing_(max_slowdown) {
  if (resident_ == 0) {
    throw std::invalid_argument("resident must be at least 1, got 0");
  }
  if (max_slowdown_) {
    gate_.set_pace(SlowdownBound(*max_slowdown_).pace());
  }
}

Coordinator::Registration Coordinator::add(NewJob new_job, Slot& slot, JobStatus& status) {
  const std::string& name = new_job.name;
  if (name.empty()) {
    throw std::invalid_argument("job name must not be empty");
  }
  const auto lock = lock_up_to_date();
  const auto namesake = std::find_if(entries_.begin(), entries_.end(), [&](const auto& known) {
    return known.second.named() && known.second.told.name == name;
  });
  const bool replaces = namesake != entries_.end();
  if (replaces && !is_terminal(namesake->second.state)) {
    throw std::invalid_argument(fmt::format("job names must be unique in a runtime, got '{}' twice", name));
  }
  const auto now = clock_.now();
  const auto job = static_cast<JobId>(names_.size());
  names_.push_back(name);
  const auto replace = [&](bool by_this) {
    if (replaces) {
      namesake->second.replaced = by_this;
    }
  };
  replace(true);  // first: no start condition means it any more
  try {
    const NewJob& told =
        entries_.emplace(job, Entry{.told = std::move(new_job), .slot = &slot, .status = &status, .arrival = now})
            .first->second.told;
    if (open_) {
      check_starts(views());
    }
    sharing_.arrive(job, {.name = told.name,
                          .priority = told.priority,
                          .automatic = std::holds_alternative<StartAuto>(told.start),
                          .starts_now = std::holds_alternative<StartNow>(told.start),
                          .steps = told.steps,
                          .profile = told.profile});
  } catch (...) {
    entries_.erase(job);
    names_.pop_back();
    replace(false);
    throw;
  }
  any_automatic_ = any_automatic_ || std::holds_alternative<StartAuto>(entries_.at(job).told.start);
  set_news();
  timeline_.record({now, now, job, EventKind::kState, 0, std::string(to_string(JobState::kPending))});
  for (const AutoSharing::Order& order : early_orders_) {
    if (order.job == job) {
      carry_out(order);
    }
  }
  std::erase_if(early_orders_, [&](const AutoSharing::Order& order) { return order.job == job; });
  return {*this, job};
}

void Coordinator::withdraw(JobId job) {
  const auto lock = lock_up_to_date();
  if (Entry* const entry = find(job)) {
    entry->slot = nullptr;  // first: the move may start other jobs, which must not count this one
    move(job, JobState::kCancelled, clock_.now());
    entries_.erase(job);
  }
}

Coordinator::Entry* Coordinator::find(JobId job) {
  const auto known = entries_.find(job);
  return known == entries_.end() ? nullptr : &known->second;
}

void Coordinator::retire_ended() noexcept {
  if (!std::exchange(any_ended_, false)) {
    return;
  }
  for (auto known = entries_.begin(); known != entries_.end();) {
    const auto& [job, entry] = *known;
    if (!is_terminal(entry.state) || entry.is_inside) {
      ++known;
      continue;
    }
    try {
      if (entry.named()) {
        ended_.add(record_of(job, entry));
      }
      known = entries_.erase(known);
    } catch (const std::bad_alloc&) {
      any_ended_ = true;
      ++known;
    }
  }
}

JobRecord Coordinator::record_of(JobId job, const Entry& entry) {
  return {job,
          entry.told.name,
          entry.told.priority,
          entry.state,
          entry.earlier_steps + entry.steps,
          stats_of(entry.bound.get())};
}

bool Coordinator::has_named(std::string_view name) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& known) { return known.second.named() && known.second.told.name == name; });
}

std::unique_lock<std::mutex> Coordinator::lock_up_to_date() {
  std::unique_lock lock(mutex_);
  take_reports();
  retire_ended();
  return lock;
}

void Coordinator::take_reports() {
  inbox_.drain([this](const JobReport& report) { apply(report); });
}

void Coordinator::open() {
  const auto lock = lock_up_to_date();
  check_starts(views());
  open_ = true;
}

bool Coordinator::wait_to_start(JobId job) {
  auto lock = lock_up_to_date();
  Entry* const entry = find(job);
  if (entry == nullptr) {
    return false;  // it was cancelled before
  }
  ++starting_;
  entry->is_inside = true;
  entry->wait = Wait::kForStart;
  set_news();
  take_reports();  // after set_news: later steps notify
  auto retry_at = decide(job);
  while (entry->wait == Wait::kForStart && !entry->start_cancelled) {
    move(job, JobState::kDelayed, clock_.now());
    const std::uint32_t seen = changed_.value();
    lock.unlock();
    clock_.wait(changed_, seen, retry_at);
    lock = lock_up_to_date();
    retry_at = decide(job);
  }
  --starting_;
  entry->is_inside = false;
  const bool started = entry->wait == Wait::kStarted;
  move(job, started ? JobState::kRunning : JobState::kCancelled, clock_.now());
  any_ended_ = any_ended_ || is_terminal(entry->state);
  set_news();
  return started;
}

std::chrono::nanoseconds Coordinator::decide(JobId job) noexcept {
  try {
    return try_to_decide(job);
  } catch (const std::bad_alloc&) {
    try_again();
    return clock_.now() + kTryAgain;
  }
}

void Coordinator::try_again() noexcept {
  if (try_again_ == kNever) {
    try_again_ = clock_.now() + kTryAgain;
    news_.notify_all();
  }
}

std::chrono::nanoseconds Coordinator::try_to_decide(JobId job) {
  Entry& entry = entries_.at(job);
  if (entry.wait != Wait::kForStart || entry.start_cancelled) {
    return kNever;
  }
  const bool automatic = std::holds_alternative<StartAuto>(entry.told.start);
  if (automatic && !entry.start_ordered) {
    share();
  }
  if (entry.start_ordered) {
    entry.wait = Wait::kStarted;
    return kNever;
  }
  if (follows_ && (resident_ || !std::holds_alternative<StartNow>(entry.told.start))) {
    return kNever;
  }
  if (automatic) {
    return sharing_.retry_at();
  }
  const std::size_t places = free_places();
  if (places == 0) {
    return kNever;  // until a job ends
  }
  const auto now = clock_.now();
  StartDecision decision = start_condition(job);
  if (!decision.start) {
    return decision.retry_after ? now + *decision.retry_after : kNever;
  }
  if (resident_) {
    if (!has_place(job)) {
      return kNever;
    }
    decision.reason += fmt::format("; places free: {} of {}", places, *resident_);
  }
  issue({{job, AutoSharing::Action::kStart, std::move(decision.reason)}});
  return kNever;
}

StartDecision Coordinator::start_condition(JobId job) const {
  const std::vector<JobView> jobs = views();
  const auto self = std::find_if(jobs.begin(), jobs.end(), [job](const JobView& view) { return view.id == job; });
  return decide_start(jobs, static_cast<std::size_t>(self - jobs.begin()), clock_.now() - entries_.at(job).arrival);
}

std::size_t Coordinator::free_places() const {
  if (!resident_) {
    return std::numeric_limits<std::size_t>::max();
  }
  const auto taken = static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& known) {
    const Entry& entry = known.second;
    return entry.start_ordered && !entry.spilled && !is_terminal(entry.state);
  }));
  return *resident_ - std::min(taken, *resident_);
}

bool Coordinator::has_place(JobId job) const {
  std::size_t ahead = 0;
  const Priority priority = entries_.at(job).told.priority;
  for (const auto& [other, entry] : entries_) {
    const bool is_ahead = outranks(entry.told.priority, priority) || (entry.told.priority == priority && other < job);
    // It may be that its thread has not asked yet.
    const bool waits = !entry.start_ordered && !entry.start_cancelled && !is_terminal(entry.state) &&
                       !std::holds_alternative<StartAuto>(entry.told.start);
    ahead += is_ahead && waits && start_condition(other).start ? 1 : 0;
  }
  return ahead < free_places();
}

void Coordinator::decide_waiting() {
  if (starting_ > 0) {
    for (const auto& [job, entry] : entries_) {
      decide(job);
    }
  }
  share();
}

void Coordinator::share() noexcept {
  if (!open_ || follows_) {
    return;  // not open yet: more jobs may be added
  }
  try {
    try_to_share();
  } catch (const std::bad_alloc&) {
    try_again();
  }
}

void Coordinator::try_to_share() {
  const auto former_retry = sharing_.retry_at();
  issue(sharing_.decide(clock_.now(), free_places()));
  if (sharing_.retry_at() < former_retry) {
    changed_.notify_all();  // waiting threads must decide earlier than planned
    news_.notify_all();
  }
}

void Coordinator::issue(AutoSharing::Orders orders) noexcept {
  for (const AutoSharing::Order& order : orders) {
    carry_out(order);
  }
  if (keeps_orders_) {
    orders_.splice(orders_.end(), orders);
  }
}

void Coordinator::carry_out(const AutoSharing::Order& order) noexcept {
  Entry* const found = find(order.job);
  if (found == nullptr || found->start_cancelled || found->slot == nullptr || is_terminal(found->state)) {
    return;  // being cancelled, or ended
  }
  Entry& entry = *found;
  const auto record = [&](const char* what) { record_decision(order.job, [&] { return what + order.reason; }); };
  switch (order.action) {
    case AutoSharing::Action::kStart:
      if (!std::exchange(entry.start_ordered, true)) {
        entry.wait = entry.wait == Wait::kForStart ? Wait::kStarted : entry.wait;
        record("start: ");
      }
      break;
    case AutoSharing::Action::kStay:
      record("stay: ");
      break;
    case AutoSharing::Action::kHold:
      entry.held = true;
      gate_.set(*entry.slot, kHold);
      record("hold: ");
      break;
    case AutoSharing::Action::kRelease:
      entry.held = false;
      gate_.clear(*entry.slot, kHold);
      record("release: ");
      break;
  }
  changed_.notify_all();
}

void Coordinator::follow_orders() {
  const auto lock = lock_up_to_date();
  follows_ = true;
}

void Coordinator::keep_orders() {
  const auto lock = lock_up_to_date();
  keeps_orders_ = true;
}

void Coordinator::obey(const AutoSharing::Order& order) {
  const auto lock = lock_up_to_date();
  if (order.job < names_.size()) {
    carry_out(order);
  } else {
    early_orders_.push_back(order);
  }
}

AutoSharing::Orders Coordinator::take_orders() {
  const auto lock = lock_up_to_date();
  return std::exchange(orders_, {});
}

template <class Describe>
void Coordinator::record_decision(JobId job, Describe what) {
  const auto now = clock_.now();
  timeline_.record([&] { return Event{now, now, job, EventKind::kDecision, 0, what()}; });
}

void Coordinator::report(const JobReport& report) {
  try {
    inbox_.put(report);
  } catch (const std::bad_alloc&) {
    const auto lock = lock_up_to_date();
    apply(report);
  }
  const bool is_step = report.kind == JobReport::Kind::kStepped;
  if (!is_step || report.at - last_news_.load(std::memory_order_relaxed) >= news_every_.load()) {
    last_news_.store(report.at, std::memory_order_relaxed);
    news_.notify_all();
  }
}

/// Whether each step wakes `serve`: only while a job's start depends on steps, because a wake costs the running job
/// time.
void Coordinator::set_news() {
  const bool decides = max_slowdown_.has_value() || any_automatic_;
  const bool awaits_step = std::any_of(entries_.begin(), entries_.end(), [](const auto& known) {
    const Entry& entry = known.second;
    const StartCondition& start = entry.told.start;
    return entry.wait == Wait::kForStart && !is_terminal(entry.state) &&
           (std::holds_alternative<StartAtStep>(start) || std::holds_alternative<StartAuto>(start));
  });
  news_every_.store(awaits_step ? std::chrono::nanoseconds(0) : decides ? kNewsIntervalForDecisions : kNewsInterval);
}

void Coordinator::serve() {
  while (!dismissed_.load()) {
    const std::uint32_t seen = news_.value();
    const auto next = attend();
    if (!dismissed_.load()) {
      clock_.wait(news_, seen, next);
    }
  }
  attend();
}

void Coordinator::dismiss() {
  dismissed_.store(true);
  news_.notify_all();
}

std::chrono::nanoseconds Coordinator::attend() {
  const auto lock = lock_up_to_date();
  if (try_again_ <= clock_.now()) {
    try_again_ = kNever;
    decide_waiting();
  } else {
    share();
  }
  return std::min(follows_ ? kNever : sharing_.retry_at(), try_again_);
}

void Coordinator::apply(const JobReport& report) {
  using Kind = JobReport::Kind;
  const JobId job = report.job;
  Entry* const entry = find(job);
  if (entry == nullptr || is_terminal(entry->state)) {
    return;  // the job was given up
  }
  switch (report.kind) {
    case Kind::kGoesOn:
      entry->earlier_steps = report.steps;
      sharing_.go_on(job, static_cast<double>(report.steps));
      decide_waiting();
      break;
    case Kind::kStepped:
      count_step(report);
      break;
    case Kind::kExpects:
    case Kind::kLength:
      sharing_.expect(job, static_cast<double>(report.steps), report.kind == Kind::kLength);
      break;
    case Kind::kSuspended:
      sharing_.suspend(job, true, report.at);
      move(job, JobState::kSuspended, report.at);
      break;
    case Kind::kHeld:
      move(job, JobState::kSuspended, report.at);
      break;
    case Kind::kResumed:
      sharing_.suspend(job, false, report.at);
      move(job, JobState::kRunning, report.at);
      break;
    case Kind::kSpilled:
    case Kind::kRestored:
      entry->spilled = report.kind == Kind::kSpilled;
      decide_waiting();
      changed_.notify_all();
      break;
    case Kind::kEnded:
      move(job, report.state, report.at);
      break;
  }
}

void Coordinator::cancel_start(JobId job) {
  const auto lock = lock_up_to_date();
  Entry* const entry = find(job);
  if (entry == nullptr) {
    return;
  }
  entry->start_cancelled = true;
  if (std::exchange(entry->held, false)) {
    gate_.clear(*entry->slot, kHold);
  }
  if (entry->state == JobState::kPending) {
    move(job, JobState::kCancelled, clock_.now());
  }
  changed_.notify_all();
}

void Coordinator::cancel_starts() {
  const auto lock = lock_up_to_date();
  for (auto& [job, entry] : entries_) {
    entry.start_cancelled = true;
  }
  changed_.notify_all();
}

void Coordinator::give_up(JobId job) {
  const auto lock = lock_up_to_date();
  if (find(job) != nullptr) {
    move(job, JobState::kCancelled, clock_.now());
  }
}

bool Coordinator::move(JobId job, JobState to, std::chrono::nanoseconds at) {
  Entry& entry = entries_.at(job);
  if (!can_become(entry.state, to)) {
    return false;
  }
  const JobState from = std::exchange(entry.state, to);
  entry.status->state.store(to);
  entry.last_step = {};
  timeline_.record({at, at, job, EventKind::kState, 0, std::string(to_string(to))});
  if (is_terminal(to)) {
    any_ended_ = true;
    entry.held = false;
    sharing_.end(job);
  } else if (to == JobState::kRunning && from != JobState::kSuspended &&
             !std::holds_alternative<StartAuto>(entry.told.start)) {
    sharing_.start(job, at);
  }
  decide_waiting();
  changed_.notify_all();
  return true;
}

void Coordinator::count_step(const JobReport& report) {
  entries_.at(report.job).steps = report.steps;
  try {
    sharing_.step(report.job, report.at);
    keep_bound(report.job, report.at);
  } catch (const std::bad_alloc&) {
    // The step is counted, but its time is not used.
  }
  decide_waiting();
}

void Coordinator::keep_bound(JobId job, std::chrono::nanoseconds now) {
  Entry& entry = entries_.at(job);
  const auto begin = std::exchange(entry.last_step, now);
  if (!max_slowdown_ || follows_ || begin.count() == 0 || entry.steps <= kWarmUpSteps || is_outranked(job)) {
    return;
  }
  const bool beside = has_lower_beside(job);
  if (entry.bound == nullptr) {
    const auto& profile = entry.told.profile;
    entry.bound =
        std::make_unique<SlowdownBound>(*max_slowdown_, profile ? std::optional(profile->step) : std::nullopt);
    gate_.set_pace(entry.bound->pace());
  }
  SlowdownBound& bound = *entry.bound;
  const Pace former = bound.pace();
  const std::uint64_t windows = bound.windows();
  const bool could_hold = !bound.cannot_hold();
  bound.step(begin, now, beside);
  if (bound.pace() != former) {
    gate_.set_pace(bound.pace());
  }
  const auto figures = [&] {
    return fmt::format("a step alone takes {:.4g} ms, others cost it {:.3g} of the time they may run",
                       1e3 * bound.alone(), bound.loss());
  };
  if (could_hold && bound.cannot_hold()) {
    record_decision(job, [&] {
      return fmt::format("bound: {:.3g} cannot be held, lower jobs wait for the end: {}", *max_slowdown_, figures());
    });
  } else if (bound.windows() != windows) {
    record_decision(job, [&] {
      return fmt::format("bound: lower jobs may run {:.3g} of the time: {}", bound.pace().share, figures());
    });
  }
}

bool Coordinator::has_lower_beside(JobId job) const {
  const Priority priority = entries_.at(job).told.priority;
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& known) {
    const Entry& other = known.second;
    return outranks(priority, other.told.priority) && other.state == JobState::kRunning;
  });
}

bool Coordinator::is_outranked(JobId job) const {
  const Priority priority = entries_.at(job).told.priority;
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& known) {
    const Entry& other = known.second;
    return outranks(other.told.priority, priority) &&
           (other.state == JobState::kRunning || other.state == JobState::kSuspended);
  });
}

std::optional<BoundStats> Coordinator::bound(JobId job) const {
  std::lock_guard lock(mutex_);
  if (const auto known = entries_.find(job); known != entries_.end()) {
    return stats_of(known->second.bound.get());
  }
  const JobRecord* const record = ended_.find(names_.at(job));
  return record != nullptr && record->id == job ? record->bound : std::nullopt;
}

std::vector<std::string> Coordinator::names() const {
  std::lock_guard lock(mutex_);
  return names_;
}

std::size_t Coordinator::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

bool Coordinator::wait_all(std::chrono::nanoseconds deadline) {
  auto lock = lock_up_to_date();
  while (!all_ended()) {
    if (clock_.now() >= deadline) {
      return false;
    }
    const std::uint32_t seen = changed_.value();
    lock.unlock();
    clock_.wait(changed_, seen, deadline);
    lock = lock_up_to_date();
  }
  return true;
}

std::vector<JobView> Coordinator::views() const {
  static const StartCondition now = StartNow{};
  std::vector<JobView> views;
  const auto add = [&](const JobRecord& ended) {
    views.push_back({.name = ended.name,
                     .priority = ended.priority,
                     .state = ended.state,
                     .steps = ended.steps,
                     .start = &now,
                     .id = ended.id});
  };
  bool counts_steps = false;
  for (const auto& [job, entry] : entries_) {
    const StartCondition& start = entry.told.start;
    views.push_back({.name = entry.told.name,
                     .priority = entry.told.priority,
                     .state = entry.state,
                     .steps = entry.earlier_steps + entry.steps,
                     .start = &start,
                     .withdrawn = !entry.named(),
                     .id = job});
    counts_steps = counts_steps || std::holds_alternative<StartAtStep>(start);
    const auto* const after = std::get_if<StartAfterJob>(&start);
    const JobRecord* const awaited = after == nullptr || has_named(after->job) ? nullptr : ended_.find(after->job);
    if (awaited != nullptr) {
      add(*awaited);
    }
  }
  if (counts_steps) {
    const auto& ended = ended_.in_order();
    const auto first =
        std::find_if(ended.begin(), ended.end(), [this](const auto& known) { return !has_named(known.second.name); });
    if (first != ended.end()) {
      add(first->second);
    }
  }
  std::stable_sort(views.begin(), views.end(), [](const JobView& a, const JobView& b) { return a.id < b.id; });
  return views;
}

bool Coordinator::all_ended() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const auto& known) { return is_terminal(known.second.state); });
}

}  // namespace torchshare
