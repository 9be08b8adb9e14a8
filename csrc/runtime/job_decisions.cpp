#include "runtime/job_decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "sharing/predecessors.h"
#include "sharing/start_rules.h"

namespace torchshare {
namespace {

// How often steps wake the coordinator's thread: without and with pending decisions that depend on them.
constexpr std::chrono::nanoseconds kWakeInterval = std::chrono::milliseconds(20);
constexpr std::chrono::nanoseconds kWakeIntervalForDecisions = std::chrono::milliseconds(1);
constexpr std::chrono::nanoseconds kTryAgain = std::chrono::milliseconds(10);  // without memory

}  // namespace

JobDecisions::JobDecisions(Clock& clock, Timeline& timeline, Gate& gate, const RuntimeOptions& options,
                           MessageInbox& inbox, EventCount& changed)
    : clock_(clock),
      timeline_(timeline),
      gate_(gate),
      inbox_(inbox),
      changed_(changed),
      keeps_bound_(options.max_slowdown.has_value()),
      keeps_deadlines_(options.policy == "edf"),
      jobs_(timeline),
      starts_(jobs_, options.max_concurrent),
      bounds_(options.max_slowdown, options.keep, gate, timeline),
      latencies_(options.keep, gate, timeline),
      deadlines_(gate, timeline, options.gate.run_ahead.value_or(std::chrono::nanoseconds(0))),
      sharing_(options.max_slowdown) {
  set_wake_interval();
}

JobId JobDecisions::add(const NewJob& new_job, Slot& slot, JobStatus& status) {
  const auto now = clock_.now();
  LiveJob& job = jobs_.add(new_job, slot, status, now);
  const StartInputs inputs = job.start_inputs();
  try {
    if (open_) {
      bind_predecessors(*job.record, jobs_.records());
      StartCheck(jobs_.records()).check(*job.record);
    }
    SharedJob shared{.name = new_job.name,
                     .priority = new_job.priority,
                     .automatic = inputs.plan,
                     .starts_now = inputs == StartInputs{},
                     .steps = new_job.steps,
                     .ends_by = new_job.ends_by,
                     .profile = new_job.profile};
    AutoSharing::check(shared);
    job.to_arrive = std::move(shared);
    if (new_job.replaces) {
      deadlines_.end(*new_job.replaces);
    }
    if (new_job.task) {
      make_periodic(job.id(), *new_job.task);
    }
    if (job.record->after.empty()) {
      arrive(job);
    }
  } catch (...) {
    jobs_.undo_add(job);
    throw;
  }
  if (new_job.replaces) {
    jobs_.replace_predecessor(*new_job.replaces, job.record);
  }
  any_automatic_ = any_automatic_ || inputs.plan;
  set_wake_interval();
  timeline_.record_state(job.id(), JobState::kPending, now);
  if (job.awaits_others()) {
    predecessors_changed_ = true;
    try_to([this] { follow_predecessors(); });
  } else {
    obey_early_orders(job.id());
  }
  return job.id();
}

/// Called when nothing but its start rule keeps the job from starting. Does nothing if it throws.
void JobDecisions::arrive(LiveJob& job) {
  sharing_.arrive(job.id(), *job.to_arrive);
  job.to_arrive.reset();
  job.arrival = clock_.now();
}

void JobDecisions::obey_early_orders(JobId job) {
  for (const AutoSharing::Order& order : ranks_.take_early(job)) {
    carry_out(order);
  }
}

/// Lets jobs arrive whose predecessors have ended, and cancels those that lack one that had to finish.
void JobDecisions::follow_predecessors() {
  if (!open_ || !std::exchange(predecessors_changed_, false)) {
    return;
  }
  try {
    for (auto& [id, job] : jobs_.live()) {
      if (job.awaits_others() && !job.start_cancelled && !job.has_ended()) {
        follow_predecessors_of(job);
      }
    }
  } catch (const std::bad_alloc&) {
    predecessors_changed_ = true;
    throw;
  }
}

void JobDecisions::follow_predecessors_of(LiveJob& job) {
  const std::vector<Predecessor>& after = job.record->after;
  if (const Predecessor* const broken = find_broken(after)) {
    job.status->never_starts =
        fmt::format("job '{}' was not started: its predecessor {}", job.record->name, ends_of({*broken}));
    timeline_.record_decision(job.id(), clock_.now(), [&job] { return job.status->never_starts; });
    cancel_start(job.id());
  } else if (have_ended(after)) {
    arrive(job);
    timeline_.record_decision(job.id(), clock_.now(), [&after] { return "may start: " + ends_of(after); });
    obey_early_orders(job.id());
    set_wake_interval();  // its start rule may count steps
  }
}

void JobDecisions::make_periodic(JobId id, const PeriodicTask& task) {
  if (keeps_deadlines_) {
    deadlines_.add(id, jobs_.names().at(id), task, clock_.now());
  }
}

void JobDecisions::withdraw(JobId id) {
  if (LiveJob* const job = jobs_.find(id)) {
    jobs_.forget_name(*job);  // first: the move may start other jobs, which must not count this one
    move(*job, JobState::kCancelled, clock_.now());
    jobs_.erase(id);
  }
}

void JobDecisions::open() {
  try {
    for (const auto& [id, job] : jobs_.live()) {
      bind_predecessors(*job.record, jobs_.records());
    }
    StartCheck starts(jobs_.records());
    for (const auto& [id, job] : jobs_.live()) {
      starts.check(*job.record);
    }
  } catch (...) {
    for (const auto& [id, job] : jobs_.live()) {
      unbind_predecessors(*job.record);
    }
    throw;
  }
  open_ = predecessors_changed_ = true;
  try_to([this] { follow_predecessors(); });
}

void JobDecisions::begin_wait(LiveJob& job) {
  starts_.enter(job);
  set_wake_interval();
}

bool JobDecisions::end_wait(LiveJob& job) {
  starts_.leave(job);
  const bool started = job.wait == LiveJob::Wait::kStarted;
  move(job, started ? JobState::kRunning : JobState::kCancelled, clock_.now());
  set_wake_interval();
  return started;
}

void JobDecisions::cancel_start(JobId id) {
  LiveJob* const job = jobs_.find(id);
  if (job == nullptr) {
    return;
  }
  job->start_cancelled = true;
  if (std::exchange(job->held, false)) {
    gate_.clear(*job->slot, kHold);
  }
  if (job->record->state == JobState::kPending) {
    move(*job, JobState::kCancelled, clock_.now());
  }
  changed_.notify_all();
}

void JobDecisions::cancel_starts() {
  for (auto& [id, job] : jobs_.live()) {
    job.start_cancelled = true;
  }
  changed_.notify_all();
}

void JobDecisions::give_up(JobId id) {
  if (LiveJob* const job = jobs_.find(id)) {
    move(*job, JobState::kCancelled, clock_.now());
  }
}

void JobDecisions::move(LiveJob& job, JobState to, std::chrono::nanoseconds at) {
  const JobState from = job.record->state;
  if (!jobs_.move(job, to, at)) {
    return;
  }
  if (is_terminal(to)) {
    job.held = false;
    sharing_.end(job.id());
    bounds_.end(job.id(), at);
    latencies_.end(job.id(), at);
    deadlines_.end(job.id());
    predecessors_changed_ = true;
  } else if (to == JobState::kRunning && from != JobState::kSuspended && !job.start_inputs().plan) {
    sharing_.start(job.id(), at);
  }
  decide();
  changed_.notify_all();
}

void JobDecisions::decide() noexcept {
  try_to([this] { follow_predecessors(); });
  try_to([this] { issue(starts_.decide(clock_.now(), ranks_.follows())); });
  share();
}

/// Makes the decisions of AutoSharing only.
void JobDecisions::share() noexcept {
  if (open_ && !ranks_.follows()) {  // not open yet: more jobs may be added
    try_to([this] { try_to_share(); });
  }
}

template <class Decide>
void JobDecisions::try_to(Decide decide) noexcept {
  try {
    decide();
  } catch (const std::bad_alloc&) {
    if (try_again_ == kNever) {
      try_again_ = clock_.now() + kTryAgain;
      inbox_.wake();
    }
  }
}

void JobDecisions::try_to_share() {
  const auto former_retry = sharing_.retry_at();
  issue(sharing_.decide(clock_.now(), starts_.free_places()));
  if (sharing_.retry_at() < former_retry) {
    inbox_.wake();
  }
}

/// Carries out decisions, and keeps them for other ranks.
void JobDecisions::issue(AutoSharing::Orders orders) noexcept {
  for (const AutoSharing::Order& order : orders) {
    carry_out(order);
  }
  ranks_.add(orders);
}

void JobDecisions::carry_out(const AutoSharing::Order& order) noexcept {
  LiveJob* const job = jobs_.find(order.job);
  if (job == nullptr || job->start_cancelled || job->slot == nullptr || job->has_ended()) {
    return;  // being cancelled, or ended
  }
  if (order.action == AutoSharing::Action::kStart && job->start_ordered) {
    return;
  }
  const char* const what = set_order(*job, order.action);
  timeline_.record_decision(order.job, clock_.now(), [&] { return what + order.reason; });
  changed_.notify_all();
}

/// Returns the word for the order.
const char* JobDecisions::set_order(LiveJob& job, AutoSharing::Action action) noexcept {
  switch (action) {
    case AutoSharing::Action::kStart:
      job.start_ordered = true;
      job.wait = job.wait == LiveJob::Wait::kForStart ? LiveJob::Wait::kStarted : job.wait;
      return "start: ";
    case AutoSharing::Action::kHold:
      job.held = true;
      gate_.set(*job.slot, kHold);
      return "hold: ";
    case AutoSharing::Action::kRelease:
      job.held = false;
      gate_.clear(*job.slot, kHold);
      return "release: ";
    case AutoSharing::Action::kStay:
      break;
  }
  return "stay: ";
}

void JobDecisions::obey(const AutoSharing::Order& order) {
  const LiveJob* const job = jobs_.find(order.job);
  if (order.job < jobs_.names().size() && (job == nullptr || !job->awaits_others())) {
    carry_out(order);
  } else {
    ranks_.add_early(order);
  }
}

/// Each step wakes the coordinator's thread only while a job's start depends on steps.
void JobDecisions::set_wake_interval() {
  const bool decides = keeps_bound_ || any_automatic_ || !latencies_.empty();
  inbox_.set_interval(starts_.counts_steps() ? std::chrono::nanoseconds(0)
                      : decides              ? kWakeIntervalForDecisions
                                             : kWakeInterval);
}

std::chrono::nanoseconds JobDecisions::serve_once() {
  if (try_again_ <= clock_.now()) {
    try_again_ = kNever;
    decide();
  } else {
    share();
  }
  return std::min(ranks_.follows() ? kNever : sharing_.retry_at(), try_again_);
}

void JobDecisions::apply(const JobMessage& message) {
  using Kind = JobMessage::Kind;
  LiveJob* const job = jobs_.find(message.job);
  if (job == nullptr || job->has_ended()) {
    return;  // the job was given up
  }
  const auto steps = static_cast<double>(message.steps);
  switch (message.kind) {
    case Kind::kGoesOn:
      job->record->earlier_steps = message.steps;
      sharing_.go_on(message.job, steps);
      decide();
      break;
    case Kind::kStepped:
    case Kind::kSteppedAfterRequest:
      count_step(*job, message);
      break;
    case Kind::kPromises:
      try_to([&] { latencies_.promise(jobs_, *job, message.target, message.at); });
      set_wake_interval();
      break;
    case Kind::kAnswered:
      count_answer(*job, message);
      break;
    case Kind::kGivenUp:
      if (!ranks_.follows()) {
        try_to([&] { latencies_.answered(jobs_, *job, message); });
      }
      break;
    case Kind::kUnit:
      if (keeps_deadlines_) {
        try_to([&] { deadlines_.learn(message.job, message.took, message.longest_op, message.at); });
      }
      break;
    case Kind::kExpects:
    case Kind::kLength:
      sharing_.expect(message.job, steps, message.kind == Kind::kLength);
      break;
    case Kind::kSuspended:
    case Kind::kResumed:
      sharing_.suspend(message.job, message.kind == Kind::kSuspended, message.at);
      [[fallthrough]];
    case Kind::kHeld:
      move(*job, message.kind == Kind::kResumed ? JobState::kRunning : JobState::kSuspended, message.at);
      break;
    case Kind::kSpilled:
    case Kind::kRestored:
      job->spilled = message.kind == Kind::kSpilled;
      decide();
      changed_.notify_all();
      break;
    case Kind::kEnded:
      move(*job, message.state, message.at);
      break;
  }
}

void JobDecisions::count_step(LiveJob& job, const JobMessage& message) {
  job.record->steps = message.steps;
  job.answers_since_step = 0;
  const bool is_timed = message.kind == JobMessage::Kind::kStepped;  // else it also waited for a request
  const auto begin = std::exchange(job.last_step, is_timed ? message.at : std::chrono::nanoseconds(0));
  try {
    sharing_.step(message.job, message.at);
    if (is_timed && begin.count() != 0 && !ranks_.follows()) {
      bounds_.step(jobs_, job, BoundUnit::kStep, message.steps, begin, message.at);
    }
  } catch (const std::bad_alloc&) {
    // The step is counted, but its time is not used.
  }
  decide();
}

void JobDecisions::count_answer(LiveJob& job, const JobMessage& message) {
  ++job.answers;
  ++job.answers_since_step;
  sharing_.answer(message.job, message.at);
  if (ranks_.follows()) {
    return;
  }
  try_to([&] {
    latencies_.answered(jobs_, job, message);
    bounds_.step(jobs_, job, BoundUnit::kRequest, job.answers, message.taken, message.at);
  });
}

}  // namespace torchshare
