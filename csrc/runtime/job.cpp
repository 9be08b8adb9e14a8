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
      id_(engine_->coordinator.add({spec_.name, spec_.priority, spec_.start, spec_.steps, spec_.profile}, slot_)),
      budget_(std::make_shared<MemoryBudget>(spec_.name, spec_.memory_budget.value_or(MemoryBudget::kUnlimited))) {
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
}

std::optional<GapStats> Job::gaps() const {
  return watch_ != nullptr ? std::optional(watch_->stats()) : std::nullopt;
}

JobStats Job::stats() const {
  const auto began = began_.load();
  const auto ended = ended_.load();
  const auto until = ended.count() != 0 ? ended : engine_->now();
  return {.steps = engine_->coordinator.steps(id_),
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
  engine_->coordinator.cancel_start(id_);
}

void Job::interrupt() {
  if ((slot_.attention.load(std::memory_order_acquire) & kCancel) != 0) {
    host_->interrupt();
  }
}

void Job::give_up() {
  engine_->coordinator.move(id_, JobState::kCancelled);
}

void Job::run(Body body) {
  if (!engine_->coordinator.wait_to_start(id_)) {
    return;
  }
  began_.store(engine_->now());
  const JobState end = run_body(body);
  body = nullptr;  // what it holds is free before anybody hears of the end
  ended_.store(engine_->now());
  engine_->coordinator.move(id_, end);
}

JobState Job::run_body(const Body& body) {
  const Seat seat{.priority = engine_->priority_of(spec_.priority), .seed = spec_.seed, .sms = spec_.sms};
  std::optional<JobThread> thread;
  JobState end = JobState::kFinished;
  bool added = false;
  try {
    thread.emplace(*engine_->device, seat, *this, spec_.threads, memory_);
    take_seat(thread->device());
    engine_->gate.add(slot_, device_->stream());
    added = true;
    body(*this);
    synchronize();
  } catch (const Cancelled&) {
    end = JobState::kCancelled;
  } catch (const std::exception& error) {
    // TorchScript turns a cancellation into an error of its own.
    end = cancel_requested() ? JobState::kCancelled : JobState::kFailed;
    error_ = error.what();
  }
  if (added) {
    engine_->gate.remove(slot_);
  }
  if (watch_ != nullptr) {
    watch_->unfollow();
  }
  device_ = nullptr;
  device_generator_ = {};
  memory_.reset();
  return end;
}

void Job::take_seat(DeviceScope& device) {
  device_ = &device;
  device_generator_ = device.generator();
  sms_.store(device.sms().value_or(0));
  if (const auto stream = device.stream(); stream != nullptr && watch_ != nullptr) {
    watch_->follow(stream);
  }
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
    if ((attention & kCancel) != 0) {
      raise_cancelled();
    }
    if ((attention & kSuspend) != 0) {
      park();
      continue;
    }
    if ((attention & kHold) != 0) {
      wait_while_held();
      continue;
    }
    if ((attention & kContended) == 0 || engine_->gate.try_enter(slot_)) {
      return;
    }
    bool admitted = false;
    block([&] { admitted = engine_->gate.wait_turn(slot_); });
    if (admitted) {
      return;
    }
  }
}

void Job::park() {
  engine_->coordinator.move(id_, JobState::kSuspended);
  block([&] { engine_->gate.wait_resumed(slot_); });
  engine_->coordinator.move(id_, JobState::kRunning);
}

void Job::wait_while_held() {
  block([&] { engine_->coordinator.wait_released(id_); });
}

void Job::checkpoint() {
  while (true) {
    if (cancel_requested()) {
      raise_cancelled();
    }
    const std::uint32_t attention = slot_.attention.load(std::memory_order_acquire);
    if ((attention & kSuspend) != 0) {
      park();
    } else if ((attention & kHold) != 0) {
      wait_while_held();
    } else {
      return;
    }
  }
}

void Job::acknowledge_cancel() {
  engine_->gate.clear(slot_, kCancel);
}

void Job::raise_cancelled() {
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
  record_span(EventKind::kInput, input_begin_, engine_->coordinator.steps(id_));
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
  engine_->coordinator.expect(id_, static_cast<double>(engine_->coordinator.steps(id_) + more), for_good);
}

void Job::begin_step() {
  step_begin_ = engine_->now();
}

void Job::end_step() {
  record_span(EventKind::kStep, step_begin_, engine_->coordinator.steps(id_));
  engine_->coordinator.count_step(id_);
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
  engine_->timeline.record({begin, engine_->now(), id_, kind, static_cast<std::uint32_t>(index), {}});
}

}  // namespace torchshare
