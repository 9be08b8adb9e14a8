#include "runtime/job.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "hook/op_call.h"

namespace torchshare {
namespace {

void check_no_other_rule(const std::string& job, const RuntimeOptions& options) {
  if (options.max_slowdown || options.secondary_share) {
    throw std::invalid_argument(fmt::format(
        "job '{}': slo must not be given with max_slowdown or secondary_share: each says when lower jobs may run",
        job));
  }
}

void check_task(const std::string& job, std::optional<std::chrono::nanoseconds> period,
                std::optional<std::chrono::nanoseconds> deadline, std::optional<std::chrono::nanoseconds> unit_time) {
  if (!period && unit_time) {
    throw std::invalid_argument(fmt::format("job '{}': unit_time needs a period", job));
  }
  for (const auto& [name, time] :
       {std::pair("period", period), std::pair("deadline", deadline), std::pair("unit_time", unit_time)}) {
    if (time && (*time <= std::chrono::nanoseconds(0) || *time == kNever)) {
      throw std::invalid_argument(
          fmt::format("job '{}': {} must be at least 1e-9 and below 1e9 seconds, got {}", job, name,
                      *time == kNever ? std::string("more") : fmt::format("{:.3g}", to_seconds(*time))));
    }
  }
  if (unit_time && *unit_time > deadline.value_or(*period)) {
    throw std::invalid_argument(
        fmt::format("job '{}': unit_time must be at most the deadline, {:.4g} ms, got {:.4g} ms", job,
                    to_milliseconds(deadline.value_or(*period)), to_milliseconds(*unit_time)));
  }
}

JobSpec checked(JobSpec spec, const RuntimeState& runtime) {
  const Device& device = *runtime.device;
  if (spec.threads < 1) {
    throw std::invalid_argument(fmt::format("job '{}': threads must be at least 1, got {}", spec.name, spec.threads));
  }
  if (spec.memory_budget && *spec.memory_budget < 1) {
    throw std::invalid_argument(
        fmt::format("job '{}': memory_budget must be at least 1 byte, got {}", spec.name, *spec.memory_budget));
  }
  if (spec.sms && (*spec.sms < 1 || !device.memory().is_cuda())) {
    throw std::invalid_argument(fmt::format("job '{}': sms must be at least 1 and needs a GPU, got {} on device '{}'",
                                            spec.name, *spec.sms, device.name()));
  }
  check_task(spec.name, spec.period, spec.deadline, spec.unit_time);
  if (spec.slo) {
    parse_latency_target(*spec.slo);
    check_no_other_rule(spec.name, runtime.options);
  }
  return spec;
}

/// When the job must have ended.
std::optional<std::chrono::nanoseconds> end_of(const JobSpec& spec, std::chrono::nanoseconds now) {
  return spec.deadline && !spec.period ? std::optional(now + *spec.deadline) : std::nullopt;
}

/// The longest op that was measured before; 0 if none was.
std::chrono::nanoseconds longest_op(const JobSpec& spec) {
  double longest = 0;
  for (const OpProfile& op : spec.ops) {
    longest = std::max(longest, op.duration.mean + op.duration.spread);
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(longest));
}

std::optional<PeriodicTask> task_of(const JobSpec& spec) {
  if (!spec.period) {
    return std::nullopt;
  }
  return PeriodicTask{.period = *spec.period,
                      .deadline = spec.deadline.value_or(*spec.period),
                      .cost = spec.unit_time.value_or(std::chrono::nanoseconds(0)),
                      .longest_op = longest_op(spec)};
}

}  // namespace

RuntimeJob::RuntimeJob(std::shared_ptr<RuntimeState> runtime, JobSpec spec, std::unique_ptr<LanguageBinding> language,
                       const RuntimeJob* replaces)
    : OpContext(spec.priority, at::detail::createCPUGenerator(spec.seed)),
      runtime_(std::move(runtime)),
      spec_(checked(std::move(spec), *runtime_)),
      language_(std::move(language)),
      ends_by_(replaces == nullptr ? end_of(spec_, runtime_->now()) : replaces->ends_by_),
      priority_(runtime_->device->thread_priority(spec_.priority, runtime_->options.device_priority)),
      budget_(std::make_shared<MemoryBudget>(spec_.name, spec_.memory_budget.value_or(MemoryBudget::kUnlimited))),
      parts_{*runtime_, spec_, *language_, *priority_, slot_, registration_},
      times_(parts_, status_),
      interrupts_(parts_, times_,
                  [this] {
                    if (memory_ != nullptr) {
                      memory_->trim();
                    }
                  }),
      units_(runtime_->gate, slot_),
      serving_threads_(parts_, *this) {
  if (const MemoryOwner::Options options = memory_options(); options.meters || options.caches) {
    runtime_->device->install_memory();
  }
  if (spec_.record_ops || runtime_->gate.forecasts()) {
    const auto shortest_gap = runtime_->options.shortest_gap.value_or(std::chrono::nanoseconds(0));
    watch_ = std::make_unique<OpWatch>(slot_, runtime_->gate, runtime_->device->clock(),
                                       WatchOptions{spec_.record_ops, shortest_gap, spec_.ops});
  }
  slot_.name = spec_.name;
  task_ = task_of(spec_);
  submitted_ = runtime_->device->record_event();
  registration_ =
      runtime_->coordinator.add({spec_.name, spec_.priority, spec_.start, spec_.after, spec_.steps, spec_.profile,
                                 task_, ends_by_, replaces == nullptr ? std::nullopt : std::optional(replaces->id())},
                                slot_, status_);
  times_.open();
}

RuntimeJob::~RuntimeJob() = default;

std::optional<GapStats> RuntimeJob::gaps() const {
  return watch_ != nullptr ? std::optional(watch_->stats()) : std::nullopt;
}

bool RuntimeJob::limits_memory() const {
  return runtime_->device->is_asynchronous() || budget_->limit() != MemoryBudget::kUnlimited;
}

JobStats RuntimeJob::stats() const {
  JobStats stats{
      .ops = slot_.ops() + served_ops(), .memory_peak = budget_->peak(), .memory_cached = budget_->peak_cached()};
  times_.set(stats);
  const auto [began, ended] = times_.span();
  if (ends_by_ && (ended.count() != 0 || !is_terminal(state()))) {
    stats.lateness = (ended.count() != 0 ? ended : runtime_->now()) - *ends_by_;
  }
  return stats;
}

std::string RuntimeJob::error() const {
  const JobState end = state();
  return end == JobState::kFailed ? error_ : end == JobState::kCancelled ? status_.never_starts : std::string();
}

bool RuntimeJob::interrupt() {
  return has_left() || interrupts_.is_acknowledged() || language_->interrupt();
}

std::optional<int> RuntimeJob::sms() const {
  const int sms = sms_.load();
  return sms > 0 ? std::optional(sms) : std::nullopt;
}

void RuntimeJob::synchronize() {
  if (const auto stream = device_->stream()) {
    interrupts_.block("device", [&] { stream->synchronize(); });
  }
}

std::unique_ptr<DevicePart> RuntimeJob::take_part(int sms) {
  if (const auto stream = device_->stream(); stream != nullptr && stream->is_capturing()) {
    throw std::logic_error(fmt::format("job '{}': on_sms must not begin while a graph is being captured", spec_.name));
  }
  if (auto part = device_->take_part(sms)) {
    return part;
  }
  throw std::invalid_argument(fmt::format("on_sms needs a GPU, got device '{}'", runtime_->device->name()));
}

std::unique_ptr<DeviceGraph> RuntimeJob::capture(const std::function<void()>& work) {
  auto graph = device_->make_graph();
  if (graph == nullptr) {
    throw std::logic_error(
        fmt::format("job '{}': device '{}' does not support graphs", spec_.name, runtime_->device->name()));
  }
  outside_gate([&] { graph->begin_capture(); });
  try {
    work();
  } catch (...) {
    try {
      outside_gate([&] { graph->end_capture(); });
    } catch (const std::exception&) {
      // The exception of `work` is more specific.
    }
    throw;
  }
  outside_gate([&] { graph->end_capture(); });
  return graph;
}

/// For torch's own ops, run under a lock that other jobs may wait for: they must wait neither at the gate nor while
/// holding the language's lock.
template <class Work>
void RuntimeJob::outside_gate(Work work) {
  const Ungated here;
  without_lock(*language_, work);
}

void RuntimeJob::launch(DeviceGraph& graph, const std::string& name) {
  run_op(this, NamedCall(hash_name(name), name), [&] { graph.launch(); });
}

void RuntimeJob::sleep(std::chrono::nanoseconds duration) {
  const bool in_input = slot_.idle.load(std::memory_order_relaxed);
  if (!in_input) {
    begin_idle(runtime_->now());
  }
  interrupts_.block("asleep", [&] { runtime_->gate.sleep(slot_, duration); });
  if (!in_input) {
    end_idle(runtime_->now());
  }
  yield_point();
}

void RuntimeJob::begin_input() {
  const auto now = runtime_->now();
  times_.begin_input(now);
  interrupts_.set_waiting(true);
  begin_idle(now);
}

void RuntimeJob::end_input() {
  const auto now = runtime_->now();
  end_idle(now);
  interrupts_.set_waiting(false);
  if (watch_ != nullptr) {
    watch_->begin_batch();
  }
  times_.end_input(now);
}

/// Null on a synchronous device, and once the body has ended: Python may end a wait later, with its last reference.
std::shared_ptr<DeviceStream> RuntimeJob::own_stream() const {
  return device_ != nullptr ? device_->stream() : nullptr;
}

void RuntimeJob::begin_wait(std::string_view reason) {
  const auto now = runtime_->now();
  if (!times_.begin_wait(reason, now)) {
    return;
  }
  if (const auto stream = own_stream(); stream != nullptr && reason == kForRanks && runtime_->gate.watches_others()) {
    slot_.waits.begin(*stream, watch_ != nullptr ? watch_->next_gap() : GapForecast{});
  }
  wait_is_inner_ = slot_.idle.load(std::memory_order_relaxed);
  if (!wait_is_inner_) {
    begin_idle(now);
  }
}

void RuntimeJob::end_wait() {
  if (!times_.end_wait()) {
    return;
  }
  if (const auto stream = own_stream()) {
    slot_.waits.end(*stream);
  }
  if (!wait_is_inner_) {
    end_idle(runtime_->now());
  }
}

void RuntimeJob::begin_idle(std::chrono::nanoseconds now) {
  runtime_->gate.set_idle(slot_, true);
  if (watch_ != nullptr) {
    watch_->begin_idle(now);
  }
}

void RuntimeJob::end_idle(std::chrono::nanoseconds now) {
  runtime_->gate.set_idle(slot_, false);
  if (watch_ != nullptr) {
    watch_->end_idle(now);
  }
}

void RuntimeJob::expect_periods(std::optional<std::chrono::nanoseconds> period,
                                std::optional<std::chrono::nanoseconds> deadline,
                                std::optional<std::chrono::nanoseconds> unit_time) {
  if (ends_by_) {
    throw std::invalid_argument(fmt::format(
        "job '{}': deadline must be given to job.periods, or to submit with a period; without one, it is that of the "
        "whole job",
        spec_.name));
  }
  check_task(spec_.name, spec_.period ? spec_.period : period, deadline, unit_time);
  if (!spec_.period && period) {
    const PeriodicTask task{*period, deadline.value_or(*period), unit_time.value_or(std::chrono::nanoseconds(0))};
    if (!task_) {
      runtime_->coordinator.make_periodic(id(), task);
      task_ = task;
    } else if (*task_ != task) {
      throw std::invalid_argument(
          fmt::format("job '{}': period, deadline and unit_time must be the same for all its "
                      "loops, got a period of {:.4g} s after {:.4g}",
                      spec_.name, to_seconds(*period), to_seconds(task_->period)));
    }
  }
  if (!task_) {
    throw std::invalid_argument(
        fmt::format("job '{}': period must be a positive number of seconds, got None", spec_.name));
  }
}

void RuntimeJob::begin_periods() {
  if (units_.is_open()) {
    throw std::logic_error(fmt::format("job '{}': a loop over its periods has not ended", spec_.name));
  }
  units_.open(*task_, runtime_->now());
}

void RuntimeJob::await_release() {
  yield_point();
  auto now = runtime_->now();
  for (auto release = units_.next_release(now); release > now; release = units_.next_release(now)) {
    sleep(release - now);
    now = runtime_->now();
  }
}

void RuntimeJob::begin_unit() {
  units_.begin(runtime_->now(), times_.at_gate());
  slot_.set_answering(true);
}

void RuntimeJob::end_unit() {
  const auto now = runtime_->now();
  times_.record_request(units_.release(), now, units_.began() - units_.release());
  const auto took = units_.end(now, times_.at_gate());
  slot_.set_answering(false);
  runtime_->coordinator.send({.job = id(),
                              .kind = JobMessage::Kind::kUnit,
                              .at = now,
                              .took = took,
                              .longest_op = watch_ != nullptr ? watch_->longest_op() : std::chrono::nanoseconds(0)});
}

void RuntimeJob::end_periods() {
  slot_.set_answering(false);
  units_.close();
}

void RuntimeJob::expect_steps(std::uint64_t more, bool for_good) {
  parts_.send(for_good ? JobMessage::Kind::kLength : JobMessage::Kind::kExpects, status_.steps.load() + more);
}

void RuntimeJob::promise(const LatencyTarget& target) {
  check_no_other_rule(spec_.name, runtime_->options);
  runtime_->coordinator.send(
      {.job = id(), .kind = JobMessage::Kind::kPromises, .at = runtime_->now(), .target = target});
}

void RuntimeJob::answered(std::chrono::nanoseconds since_arrival, std::chrono::nanoseconds since_taken) {
  const auto now = runtime_->now();
  times_.record_request(now - since_arrival, now, since_arrival - since_taken);
  runtime_->coordinator.send({.job = id(),
                              .kind = JobMessage::Kind::kAnswered,
                              .at = now,
                              .arrived = now - since_arrival,
                              .taken = now - since_taken});
}

void RuntimeJob::given_up(std::chrono::nanoseconds since_arrival) {
  const auto now = runtime_->now();
  runtime_->coordinator.send(
      {.job = id(), .kind = JobMessage::Kind::kGivenUp, .at = now, .arrived = now - since_arrival, .taken = now});
}

void RuntimeJob::go_on_after(std::uint64_t steps) {
  status_.earlier_steps.store(steps);
  parts_.send(JobMessage::Kind::kGoesOn, steps);
}

void RuntimeJob::set_spilled(bool spilled) {
  parts_.send(spilled ? JobMessage::Kind::kSpilled : JobMessage::Kind::kRestored);
}

void RuntimeJob::end_step() {
  const std::int64_t most = budget_->high_water();
  times_.end_step(most);
  if (most > 0) {
    budget_->begin_high_water();
  }
  const std::uint64_t steps = status_.steps.load() + 1;
  status_.steps.store(steps);
  using Kind = JobMessage::Kind;
  parts_.send(std::exchange(took_request_, false) ? Kind::kSteppedAfterRequest : Kind::kStepped, steps);
  if (watch_ != nullptr) {
    watch_->end_step();
  }
}

}  // namespace torchshare
