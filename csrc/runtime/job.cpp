#include "runtime/job.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "hook/op_call.h"
#include "runtime/job_thread.h"

namespace torchshare {
namespace {

void add_to(std::atomic<std::chrono::nanoseconds>& total, std::chrono::nanoseconds amount) {
  total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);  // one writer
}

JobSpec checked(JobSpec spec, const Device& device) {
  if (spec.threads < 1) {
    throw std::invalid_argument(fmt::format("job '{}': threads must be at least 1, got {}", spec.name, spec.threads));
  }
  if (spec.memory_budget && *spec.memory_budget < 1) {
    throw std::invalid_argument(
        fmt::format("job '{}': memory_budget must be at least 1 byte, got {}", spec.name, *spec.memory_budget));
  }
  if (spec.sms && (*spec.sms < 1 || device.memory_type() != c10::DeviceType::CUDA)) {
    throw std::invalid_argument(fmt::format("job '{}': sms must be at least 1 and needs a GPU, got {} on device '{}'",
                                            spec.name, *spec.sms, device.name()));
  }
  return spec;
}

/// The thread's count, or the last one read if the thread has ended, so that a count never decreases.
std::chrono::nanoseconds counted(std::optional<std::chrono::nanoseconds> now,
                                 std::atomic<std::chrono::nanoseconds>& last) {
  if (now) {
    last.store(*now);
  }
  return last.load();
}

}  // namespace

RuntimeJob::RuntimeJob(std::shared_ptr<RuntimeState> runtime, JobSpec spec, std::unique_ptr<LanguageBinding> language)
    : OpContext(spec.priority, at::detail::createCPUGenerator(spec.seed)),
      runtime_(std::move(runtime)),
      spec_(checked(std::move(spec), *runtime_->device)),
      language_(std::move(language)),
      priority_(runtime_->device->thread_priority(spec_.priority, runtime_->options.device_priority)),
      budget_(std::make_shared<MemoryBudget>(spec_.name, spec_.memory_budget.value_or(MemoryBudget::kUnlimited))) {
  if (const MemoryOwner::Options options = memory_options(); options.meters || options.caches) {
    runtime_->device->install_memory();
  }
  if (spec_.record_ops || runtime_->gate.forecasts()) {
    watch_ = std::make_unique<OpWatch>(
        slot_, runtime_->gate, runtime_->device->clock(),
        WatchOptions{spec_.record_ops, runtime_->options.shortest_gap.value_or(std::chrono::nanoseconds(0)),
                     spec_.ops});
  }
  registration_ =
      runtime_->coordinator.add({spec_.name, spec_.priority, spec_.start, spec_.steps, spec_.profile}, slot_, status_);
  log_ = runtime_->timeline.open_log();
}

RuntimeJob::~RuntimeJob() {
  runtime_->timeline.close_log(log_);  // unless its thread has: it may never have run
}

/// Jobs on a GPU are always metered: it is cheap beside the launches, and detects tensors that cross jobs.
MemoryOwner::Options RuntimeJob::memory_options() const {
  const Device& device = *runtime_->device;
  return {
      .meters = spec_.meter_memory || spec_.memory_budget || device.is_asynchronous(),
      .caches = spec_.cache_memory && device.memory_type() == c10::DeviceType::CPU,
  };
}

/// Only jobs that run own memory: there are few owners, and jobs may wait in a long queue.
void RuntimeJob::own_memory() {
  if (const MemoryOwner::Options options = memory_options(); options.meters || options.caches) {
    memory_ = std::make_shared<MemoryOwner>(budget_, runtime_->device->memory_type(), options);
    checks_owners_ = runtime_->device->is_asynchronous();
    if (!memory_->is_identified()) {
      TORCH_WARN("job '", spec_.name,
                 "': so many jobs run that its memory is not cached, and that its tensors are "
                 "not told from others'");
    }
  }
}

std::optional<GapStats> RuntimeJob::gaps() const {
  return watch_ != nullptr ? std::optional(watch_->stats()) : std::nullopt;
}

bool RuntimeJob::limits_memory() const {
  return runtime_->device->is_asynchronous() || budget_->limit() != MemoryBudget::kUnlimited;
}

void RuntimeJob::record_budget() {
  const std::int64_t limit = budget_->limit();
  runtime_->timeline.record_decision(id(), runtime_->now(), [&] {
    return limit == MemoryBudget::kUnlimited ? std::string("memory budget: none, no other job runs")
                                             : fmt::format("memory budget: {:.1f} MiB, an even share of what is free",
                                                           static_cast<double>(limit) / (1 << 20));
  });
}

JobStats RuntimeJob::stats() const {
  const auto began = began_.load();
  const auto ended = ended_.load();
  const auto until = ended.count() != 0 ? ended : runtime_->now();
  return {.steps = status_.steps.load(),
          .earlier_steps = status_.earlier_steps.load(),
          .sub_batches = sub_batches_.load(),
          .ops = slot_.ops(),
          .waited = waited_.load(),
          .input = input_.load(),
          .cpu = counted(priority_->used(), cpu_),
          .core_wait = counted(priority_->waited(), core_wait_),
          .ran = began.count() != 0 ? until - began : began,
          .memory_peak = budget_->peak(),
          .memory_cached = budget_->peak_cached()};
}

std::string RuntimeJob::error() const {
  return state() == JobState::kFailed ? error_ : std::string();
}

void RuntimeJob::suspend() {
  runtime_->gate.set(slot_, kSuspend);
  if (cancel_requested()) {
    runtime_->gate.clear(slot_, kSuspend);  // the ops that clean up must not wait
  }
}

void RuntimeJob::resume() {
  runtime_->gate.clear(slot_, kSuspend);
}

void RuntimeJob::set_forking(bool forking) {
  forking ? runtime_->gate.set(slot_, kFork) : runtime_->gate.clear(slot_, kFork);
}

void RuntimeJob::cancel() {
  if (cancel_requested_.exchange(true)) {
    return;
  }
  runtime_->gate.set(slot_, kCancel);  // first, so that no further op runs
  runtime_->gate.clear(slot_, kSuspend);
  priority_->raise_for_good();  // other threads wait for the job to end
  runtime_->coordinator.cancel_start(id());
}

bool RuntimeJob::interrupt() {
  const bool reached = has_left() || (slot_.attention.load(std::memory_order_acquire) & kCancel) == 0;
  return reached || language_->interrupt();
}

void RuntimeJob::give_up() {
  given_up_.store(true);
  runtime_->gate.set(slot_, kCancel);
  runtime_->coordinator.give_up(id());
}

void RuntimeJob::run(Body body) {
  become_jobs_thread();
  if (!runtime_->coordinator.wait_to_start(id())) {
    leave();
    return;
  }
  began_.store(runtime_->now());
  const JobState end = run_body(body);
  body = nullptr;  // release its state before reporting the end
  ended_.store(runtime_->now());
  leave();
  report(JobReport::Kind::kEnded, 0, end);
}

void RuntimeJob::leave() {
  runtime_->timeline.close_log(log_);
  has_left_.store(true, std::memory_order_release);
}

void RuntimeJob::report(JobReport::Kind kind, std::uint64_t steps, JobState state) {
  runtime_->coordinator.report({.job = id(), .kind = kind, .at = runtime_->now(), .steps = steps, .state = state});
}

/// Held by the job's thread while its body runs: the device scope, memberships of the gate and the stall watch.
class RuntimeJob::InBody {
 public:
  InBody(RuntimeJob& job, DeviceScope& device)
      : job_(job),
        stream_(device.stream()),
        member_(job.runtime_->gate, job.slot_, stream_),
        watched_(job.runtime_->stall_watch, job.slot_, *job.priority_),
        shares_(job.runtime_->memory_shares, job.budget_, job.spec_.memory_budget.has_value(),
                [&job] { job.record_budget(); }) {
    if (stream_ != nullptr && job_.watch_ != nullptr) {
      job_.watch_->follow(stream_);
    }
    job_.device_ = &device;
    job_.device_generator_ = device.generator();
    job_.sms_.store(device.sms().value_or(0));
    job_.in_body_.store(true);
  }
  ~InBody() {
    job_.in_body_.store(false);
    counted(job_.priority_->used(), job_.cpu_);
    counted(job_.priority_->waited(), job_.core_wait_);
    job_.priority_->raise();  // the cleanup takes locks that other threads wait for
    if (job_.watch_ != nullptr) {
      job_.watch_->unfollow();
    }
    job_.device_ = nullptr;
    job_.device_generator_ = {};
  }
  InBody(const InBody&) = delete;  // bound to a thread
  InBody& operator=(const InBody&) = delete;

 private:
  RuntimeJob& job_;
  const std::shared_ptr<DeviceStream> stream_;
  const Gate::Membership member_;
  const StallWatch::Member watched_;
  const MemoryShares::Member shares_;
};

JobState RuntimeJob::run_body(const Body& body) {
  const DeviceRequest request{.priority = runtime_->priority_of(spec_.priority), .seed = spec_.seed, .sms = spec_.sms};
  JobState end = JobState::kFinished;
  try {
    own_memory();
    JobThread thread(*runtime_->device, *priority_, request, *this, spec_.threads, memory_);
    const InBody in_body(*this, thread.device());
    body(*this);
    synchronize();
  } catch (const Cancelled&) {
    end = JobState::kCancelled;
  } catch (const std::exception& error) {
    // TorchScript converts a cancellation into its own error.
    end = cancel_requested() ? JobState::kCancelled : JobState::kFailed;
    try {
      error_ = error.what();
    } catch (const std::bad_alloc&) {
      error_ = "out of memory";  // short enough to need none
    }
  }
  memory_.reset();
  return end;
}

void RuntimeJob::synchronize() {
  if (const auto stream = device_->stream()) {
    block("device", [&] { stream->synchronize(); });
  }
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
  without_language_lock(work);
}

void RuntimeJob::launch(DeviceGraph& graph, const std::string& name) {
  run_op(this, NamedCall(hash_name(name), name), [&] { graph.launch(); });
}

std::optional<int> RuntimeJob::sms() const {
  const int sms = sms_.load();
  return sms > 0 ? std::optional(sms) : std::nullopt;
}

/// The job waits for others until the destructor, and may do so already. The job's own thread.
class RuntimeJob::Waiting {
 public:
  explicit Waiting(RuntimeJob& job) : job_(job), former_(job.is_waiting_.exchange(true)) {}
  ~Waiting() { job_.is_waiting_.store(former_); }
  Waiting(const Waiting&) = delete;  // bound to a thread
  Waiting& operator=(const Waiting&) = delete;

 private:
  RuntimeJob& job_;
  const bool former_;
};

void RuntimeJob::attend() {
  while (true) {
    const std::uint32_t attention = slot_.attention.load(std::memory_order_acquire);
    if ((attention & kRaised) != 0) {
      lower_again(slot_, *priority_);
    }
    if ((attention & (kCancel | kSuspend | kHold | kFork)) != 0 && !language_->may_stop()) {
      return;
    }
    if ((attention & kCancel) != 0) {
      unwind();
    } else if ((attention & kSuspend) != 0) {
      wait_while(kSuspend, JobReport::Kind::kSuspended);
    } else if ((attention & kHold) != 0) {
      wait_while(kHold, JobReport::Kind::kHeld);
    } else if ((attention & kFork) != 0) {
      const Waiting here(*this);
      block("fork", [&] { runtime_->gate.wait_while(slot_, kFork); });
    } else if ((attention & kContended) == 0 || runtime_->gate.try_enter(slot_)) {
      return;
    } else {
      bool admitted = false;
      const Waiting here(*this);
      block("gate", [&] { admitted = runtime_->gate.wait_turn(slot_); });
      if (admitted) {
        return;
      }
    }
  }
}

void RuntimeJob::wait_while(Attention bit, JobReport::Kind reason) {
  const Waiting here(*this);
  report(reason);
  if (bit == kSuspend && memory_ != nullptr) {
    memory_->trim();
  }
  block(bit == kSuspend ? "suspended" : "held", [&] { runtime_->gate.wait_while(slot_, bit); });
  report(JobReport::Kind::kResumed);
}

void RuntimeJob::checkpoint() {
  while (true) {
    std::uint32_t attention = slot_.attention.load(std::memory_order_acquire);
    if (is_ungated()) {
      attention &= ~(kSuspend | kHold);  // other threads wait for it
    }
    if ((cancel_requested() || (attention & (kSuspend | kHold)) != 0) && !language_->may_stop()) {
      return;
    }
    if (cancel_requested()) {
      unwind();
    }
    if ((attention & kSuspend) != 0) {
      wait_while(kSuspend, JobReport::Kind::kSuspended);
    } else if ((attention & kHold) != 0) {
      wait_while(kHold, JobReport::Kind::kHeld);
    } else {
      return;
    }
  }
}

void RuntimeJob::acknowledge_cancel() {
  if (!given_up_.load()) {
    runtime_->gate.clear(slot_, kCancel);
  }
}

void RuntimeJob::repeat_cancel() {
  if (cancel_requested()) {
    runtime_->gate.set(slot_, kCancel);
  }
}

void RuntimeJob::unwind() {
  acknowledge_cancel();
  language_->raise_cancelled(fmt::format("job '{}' was cancelled", spec_.name));
}

void RuntimeJob::sleep(std::chrono::nanoseconds duration) {
  const bool in_input = slot_.idle.load(std::memory_order_relaxed);
  if (!in_input) {
    begin_idle(runtime_->now());
  }
  block("asleep", [&] { runtime_->gate.sleep(slot_, duration); });
  if (!in_input) {
    end_idle(runtime_->now());
  }
  checkpoint();
}

template <class Wait>
void RuntimeJob::block(std::string_view reason, Wait wait) {
  const auto begin = runtime_->now();
  without_language_lock(wait);
  add_to(waited_, runtime_->now() - begin);
  record_span(EventKind::kWait, begin, 0, reason);
}

/// Runs `work` without the language's lock, such as the GIL, and takes the lock again even if `work` throws.
template <class Work>
void RuntimeJob::without_language_lock(Work work) {
  language_->before_wait();
  try {
    work();
  } catch (...) {
    language_->after_wait();
    throw;
  }
  language_->after_wait();
}

void RuntimeJob::begin_input() {
  input_begin_ = runtime_->now();
  is_waiting_.store(true, std::memory_order_relaxed);
  begin_idle(input_begin_);
}

void RuntimeJob::end_input() {
  const auto now = runtime_->now();
  end_idle(now);
  is_waiting_.store(false, std::memory_order_relaxed);
  if (watch_ != nullptr) {
    watch_->begin_batch();
  }
  add_to(input_, now - input_begin_);
  record_span(EventKind::kInput, input_begin_, status_.earlier_steps.load() + status_.steps.load());
}

void RuntimeJob::begin_wait(std::string_view reason) {
  if (++waits_ > 1) {
    return;  // part of the outer one
  }
  wait_reason_ = reason;
  wait_begin_ = runtime_->now();
  wait_is_inner_ = slot_.idle.load(std::memory_order_relaxed);
  if (!wait_is_inner_) {
    begin_idle(wait_begin_);
  }
}

void RuntimeJob::end_wait() {
  if (--waits_ > 0) {
    return;
  }
  const auto now = runtime_->now();
  if (!wait_is_inner_) {
    end_idle(now);
  }
  add_to(waited_, now - wait_begin_);
  record_span(EventKind::kWait, wait_begin_, 0, wait_reason_);
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

void RuntimeJob::expect_steps(std::uint64_t more, bool for_good) {
  report(for_good ? JobReport::Kind::kLength : JobReport::Kind::kExpects, status_.steps.load() + more);
}

void RuntimeJob::go_on_after(std::uint64_t steps) {
  status_.earlier_steps.store(steps);
  report(JobReport::Kind::kGoesOn, steps);
}

void RuntimeJob::report_spilled(bool spilled) {
  report(spilled ? JobReport::Kind::kSpilled : JobReport::Kind::kRestored);
}

void RuntimeJob::begin_step() {
  step_begin_ = runtime_->now();
}

void RuntimeJob::end_step() {
  record_sub_batches();
  const std::uint64_t steps = status_.steps.load();
  record_span(EventKind::kStep, step_begin_, status_.earlier_steps.load() + steps);
  if (const std::int64_t most = budget_->high_water(); most > 0) {
    record_span(EventKind::kMemory, step_begin_, static_cast<std::uint64_t>(most));
    budget_->begin_high_water();
  }
  status_.steps.store(steps + 1);
  report(JobReport::Kind::kStepped, steps + 1);
  if (watch_ != nullptr) {
    watch_->end_step();
  }
}

void RuntimeJob::begin_sub_batch() {
  sub_batch_begin_ = runtime_->now();
}

void RuntimeJob::end_sub_batch() {
  sub_batches_in_step_.emplace_back(sub_batch_begin_.count(), runtime_->now().count());
}

void RuntimeJob::record_sub_batches() {
  for (const auto& [begin, end] : exchange_sub_batches({})) {
    const std::uint64_t number = sub_batches_.fetch_add(1);
    log_->record(
        {std::chrono::nanoseconds(begin), std::chrono::nanoseconds(end), id(), EventKind::kSubBatch, number, {}});
  }
}

void RuntimeJob::record_span(EventKind kind, std::chrono::nanoseconds begin, std::uint64_t number,
                             std::string_view detail) {
  log_->record({begin, runtime_->now(), id(), kind, number, std::string(detail)});
}

}  // namespace torchshare
