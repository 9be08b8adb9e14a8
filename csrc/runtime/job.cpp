#include "runtime/job.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "gate/op_call.h"
#include "runtime/job_thread.h"

namespace torchshare {
namespace {

void add_to(std::atomic<std::chrono::nanoseconds>& total, std::chrono::nanoseconds amount) {
  total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);  // one writer
}

JobSpec checked(JobSpec spec, const Device& device) {
  if (spec.threads < 1) {
    throw std::invalid_argument(fmt::format("job '{}': threads is {}: expected at least 1", spec.name, spec.threads));
  }
  if (spec.memory_budget && *spec.memory_budget < 1) {
    throw std::invalid_argument(
        fmt::format("job '{}': memory_budget is {} bytes: expected at least 1", spec.name, *spec.memory_budget));
  }
  if (spec.sms && (*spec.sms < 1 || device.memory_type() != c10::DeviceType::CUDA)) {
    throw std::invalid_argument(fmt::format("job '{}': sms is {} on device '{}': expected at least 1, on a GPU",
                                            spec.name, *spec.sms, device.name()));
  }
  return spec;
}

}  // namespace

Job::Job(std::shared_ptr<Engine> engine, JobSpec spec, std::unique_ptr<Host> host)
    : OpContext(spec.priority, at::detail::createCPUGenerator(spec.seed)),
      engine_(std::move(engine)),
      spec_(checked(std::move(spec), *engine_->device)),
      host_(std::move(host)),
      priority_(engine_->device->thread_priority(engine_->priority_of(spec_.priority))),
      budget_(std::make_shared<MemoryBudget>(spec_.name, spec_.memory_budget.value_or(MemoryBudget::kUnlimited))),
      log_(engine_->timeline.open_log()) {
  // A GPU's jobs always count theirs: it is little beside the launches, and tells when tensors cross jobs.
  Device& device = *engine_->device;
  if (spec_.meter_memory || spec_.memory_budget || device.is_asynchronous()) {
    device.install_memory();
    memory_ = std::make_shared<MemoryOwner>(budget_, device.memory_type());
    checks_owners_ = device.is_asynchronous();
  }
  if (spec_.record_ops || engine_->gate.forecasts()) {
    watch_ = std::make_unique<OpWatch>(slot_, engine_->gate, engine_->device->clock(),
                                       WatchOptions{spec_.record_ops, engine_->shortest_gap, spec_.ops});
  }
  registration_ =
      engine_->coordinator.add({spec_.name, spec_.priority, spec_.start, spec_.steps, spec_.profile}, slot_, status_);
}

std::optional<GapStats> Job::gaps() const {
  return watch_ != nullptr ? std::optional(watch_->stats()) : std::nullopt;
}

JobStats Job::stats() const {
  const auto began = began_.load();
  const auto ended = ended_.load();
  const auto until = ended.count() != 0 ? ended : engine_->now();
  return {.steps = status_.steps.load(),
          .sub_batches = sub_batches_.load(),
          .ops = slot_.ops(),
          .waited = waited_.load(),
          .input = input_.load(),
          .ran = began.count() != 0 ? until - began : began,
          .memory_peak = budget_->peak()};
}

std::string Job::error() const {
  return state() == JobState::kFailed ? error_ : std::string();
}

void Job::suspend() {
  engine_->gate.set(slot_, kSuspend);
}

void Job::resume() {
  engine_->gate.clear(slot_, kSuspend);
}

void Job::cancel() {
  if (cancel_requested_.exchange(true)) {
    return;
  }
  engine_->gate.set(slot_, kCancel);
  priority_->raise_for_good();  // others wait for its end now
  engine_->coordinator.cancel_start(id());
}

bool Job::interrupt() {
  const bool reached = has_left() || (slot_.attention.load(std::memory_order_acquire) & kCancel) == 0;
  return reached || host_->interrupt();
}

void Job::give_up() {
  given_up_.store(true);
  engine_->gate.set(slot_, kCancel);
  engine_->coordinator.give_up(id());
}

void Job::run(Body body) {
  become_jobs_thread();
  if (!engine_->coordinator.wait_to_start(id())) {
    has_left_.store(true, std::memory_order_release);
    return;
  }
  began_.store(engine_->now());
  const JobState end = run_body(body);
  body = nullptr;  // what it holds is free before anybody hears of the end
  ended_.store(engine_->now());
  has_left_.store(true, std::memory_order_release);
  report(JobReport::Kind::kEnded, 0, end);
}

void Job::report(JobReport::Kind kind, std::uint64_t steps, JobState state) {
  engine_->coordinator.report({.job = id(), .kind = kind, .at = engine_->now(), .steps = steps, .state = state});
}

/// What the job's thread has while its body runs: its seat at the device, and its places at those who watch it.
class Job::Seated {
 public:
  Seated(Job& job, DeviceScope& device)
      : job_(job),
        stream_(device.stream()),
        member_(job.engine_->gate, job.slot_, stream_),
        watched_(job.engine_->stall_watch, job.slot_, *job.priority_) {
    if (stream_ != nullptr && job_.watch_ != nullptr) {
      job_.watch_->follow(stream_);
    }
    job_.device_ = &device;
    job_.device_generator_ = device.generator();
    job_.sms_.store(device.sms().value_or(0));
    job_.in_body_.store(true);
  }
  ~Seated() {
    job_.in_body_.store(false);
    job_.priority_->raise();  // what is left to do takes locks that others want
    try {
      if (job_.watch_ != nullptr) {
        job_.watch_->unfollow();
      }
    } catch (const std::exception& error) {
      TORCH_WARN("torchshare: job '", job_.spec_.name, "': its last ops could not be timed: ", error.what());
    }
    job_.device_ = nullptr;
    job_.device_generator_ = {};
  }
  Seated(const Seated&) = delete;  // bound to a thread
  Seated& operator=(const Seated&) = delete;

 private:
  Job& job_;
  const std::shared_ptr<DeviceStream> stream_;
  const Gate::Membership member_;
  const StallWatch::Member watched_;
};

JobState Job::run_body(const Body& body) {
  const Seat seat{.priority = engine_->priority_of(spec_.priority), .seed = spec_.seed, .sms = spec_.sms};
  JobState end = JobState::kFinished;
  try {
    JobThread thread(*engine_->device, *priority_, seat, *this, spec_.threads, memory_);
    const Seated seated(*this, thread.device());
    body(*this);
    synchronize();
  } catch (const Cancelled&) {
    end = JobState::kCancelled;
  } catch (const std::exception& error) {
    // TorchScript turns a cancellation into an error of its own.
    end = cancel_requested() ? JobState::kCancelled : JobState::kFailed;
    error_ = error.what();
  }
  memory_.reset();
  return end;
}

void Job::synchronize() {
  if (const auto stream = device_->stream()) {
    block([&] { stream->synchronize(); });
  }
}

std::unique_ptr<DeviceGraph> Job::capture(const std::function<void()>& work) {
  auto graph = device_->make_graph();
  if (graph == nullptr) {
    throw std::logic_error(fmt::format("job '{}': device '{}' has no graphs", spec_.name, engine_->device->name()));
  }
  begin_capture(*graph);
  try {
    work();
  } catch (...) {
    try {
      graph->end_capture();
    } catch (const std::exception&) {
      // What `work` threw says more.
    }
    throw;
  }
  graph->end_capture();
  return graph;
}

/// A capture begins with ops of torch's own, under a lock that other jobs want: they must not wait at the gate, nor
/// with the language's lock.
void Job::begin_capture(DeviceGraph& graph) {
  const Ungated here;
  without_host([&] { graph.begin_capture(); });
}

void Job::launch(DeviceGraph& graph, const std::string& name) {
  run_op(this, GraphCall(hash_name(name), name), [&] { graph.launch(); });
}

std::optional<int> Job::sms() const {
  const int sms = sms_.load();
  return sms > 0 ? std::optional(sms) : std::nullopt;
}

void Job::attend() {
  while (true) {
    const std::uint32_t attention = slot_.attention.load(std::memory_order_acquire);
    if ((attention & kRaised) != 0) {
      lower_again(slot_, *priority_);
    }
    if ((attention & (kCancel | kSuspend | kHold)) != 0 && !host_->may_stop()) {
      return;
    }
    if ((attention & kCancel) != 0) {
      unwind();
    } else if ((attention & kSuspend) != 0) {
      wait_while(kSuspend, JobReport::Kind::kSuspended);
    } else if ((attention & kHold) != 0) {
      wait_while(kHold, JobReport::Kind::kHeld);
    } else if ((attention & kContended) == 0 || engine_->gate.try_enter(slot_)) {
      return;
    } else {
      bool admitted = false;
      block([&] { admitted = engine_->gate.wait_turn(slot_); });
      if (admitted) {
        return;
      }
    }
  }
}

void Job::wait_while(Attention bit, JobReport::Kind reason) {
  report(reason);
  block([&] { engine_->gate.wait_while(slot_, bit); });
  report(JobReport::Kind::kResumed);
}

void Job::checkpoint() {
  while (true) {
    const std::uint32_t attention = slot_.attention.load(std::memory_order_acquire);
    if ((cancel_requested() || (attention & (kSuspend | kHold)) != 0) && !host_->may_stop()) {
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

void Job::acknowledge_cancel() {
  if (!given_up_.load()) {
    engine_->gate.clear(slot_, kCancel);
  }
}

void Job::repeat_cancel() {
  if (cancel_requested()) {
    engine_->gate.set(slot_, kCancel);
  }
}

void Job::unwind() {
  acknowledge_cancel();
  host_->raise_cancelled(fmt::format("job '{}' was cancelled", spec_.name));
}

void Job::sleep(std::chrono::nanoseconds duration) {
  const bool in_input = slot_.idle.load(std::memory_order_relaxed);
  if (!in_input) {
    begin_idle(engine_->now());
  }
  block([&] { engine_->gate.sleep(slot_, duration); });
  if (!in_input) {
    end_idle(engine_->now());
  }
  checkpoint();
}

template <class Wait>
void Job::block(Wait wait) {
  const auto begin = engine_->now();
  without_host(wait);
  add_to(waited_, engine_->now() - begin);
  record_span(EventKind::kWait, begin, 0);
}

/// Gives up what the job's language holds meanwhile, such as the interpreter lock, and has it again whatever `work`
/// throws.
template <class Work>
void Job::without_host(Work work) {
  host_->before_wait();
  try {
    work();
  } catch (...) {
    host_->after_wait();
    throw;
  }
  host_->after_wait();
}

void Job::begin_input() {
  input_begin_ = engine_->now();
  begin_idle(input_begin_);
}

void Job::end_input() {
  const auto now = engine_->now();
  end_idle(now);
  if (watch_ != nullptr) {
    watch_->begin_batch();
  }
  add_to(input_, now - input_begin_);
  record_span(EventKind::kInput, input_begin_, status_.steps.load());
}

void Job::begin_idle(std::chrono::nanoseconds now) {
  engine_->gate.set_idle(slot_, true);
  if (watch_ != nullptr) {
    watch_->begin_idle(now);
  }
}

void Job::end_idle(std::chrono::nanoseconds now) {
  engine_->gate.set_idle(slot_, false);
  if (watch_ != nullptr) {
    watch_->end_idle(now);
  }
}

void Job::expect_steps(std::uint64_t more, bool for_good) {
  report(for_good ? JobReport::Kind::kLength : JobReport::Kind::kExpects, status_.steps.load() + more);
}

void Job::begin_step() {
  step_begin_ = engine_->now();
}

void Job::end_step() {
  const std::uint64_t steps = status_.steps.load();
  record_span(EventKind::kStep, step_begin_, steps);
  status_.steps.store(steps + 1);
  report(JobReport::Kind::kStepped, steps + 1);
  if (watch_ != nullptr) {
    watch_->end_step();
  }
}

void Job::begin_sub_batch() {
  sub_batch_begin_ = engine_->now();
}

void Job::end_sub_batch() {
  record_span(EventKind::kSubBatch, sub_batch_begin_, sub_batches_.fetch_add(1));
}

void Job::record_span(EventKind kind, std::chrono::nanoseconds begin, std::uint64_t index) {
  log_.record({begin, engine_->now(), id(), kind, static_cast<std::uint32_t>(index), {}});
}

}  // namespace torchshare
