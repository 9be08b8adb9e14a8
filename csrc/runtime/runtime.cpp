#include "runtime/runtime.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <pthread.h>

#include <stdexcept>
#include <utility>

#include "gate/wake_cost.h"

namespace torchshare {
namespace {

constexpr std::chrono::nanoseconds kRunAhead = std::chrono::microseconds(500);
constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(2);
constexpr std::size_t kLongestThreadName = 15;  // Linux

std::shared_ptr<Engine> make_engine(std::shared_ptr<Device> device, const RuntimeOptions& options) {
  if (current_context != nullptr) {
    throw std::logic_error("a runtime cannot be opened inside a job: submit to the runtime that runs it");
  }
  if (options.max_slowdown && options.secondary_share) {
    throw std::invalid_argument(
        "max_slowdown and secondary_share are both given; expected one: the bound sets the share");
  }
  if (options.gate.run_ahead && !device->is_asynchronous()) {
    throw std::invalid_argument(fmt::format(
        "run_ahead is given for device '{}', which runs with the host; expected a device that runs behind it (cuda)",
        device->name()));
  }
  GatePolicyOptions gate = options.gate;
  if (device->is_asynchronous() && options.policy != "priority") {
    gate.run_ahead = gate.run_ahead.value_or(kRunAhead);
  }
  auto policy = make_gate_policy(options.policy, gate);
  const auto shortest_gap = options.shortest_gap || !policy->forecasts()
                                ? options.shortest_gap.value_or(std::chrono::nanoseconds(0))
                                : measure_wake_cost().shortest_gap();
  auto engine = std::make_shared<Engine>(std::move(device), std::move(policy), options.timeline_capacity,
                                         options.max_slowdown, shortest_gap, options.device_priority);
  if (const auto share = options.secondary_share) {
    if (!(*share >= 0 && *share <= 1)) {
      throw std::invalid_argument(fmt::format("secondary_share is {}; expected 0 to 1", *share));
    }
    engine->gate.set_pace({.share = *share});
  }
  return engine;
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const RuntimeOptions& options)
    : engine_(make_engine(std::move(device), options)), former_threads_(at::get_num_threads()) {}

Runtime::~Runtime() {
  close(kPatience);
}

std::shared_ptr<Job> Runtime::submit(JobSpec spec, Job::Body body, std::unique_ptr<Host> host) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    throw std::logic_error("the runtime is closed: expected submit before close");
  }
  auto job = std::make_shared<Job>(engine_, std::move(spec), std::move(host));
  members_.push_back({job, std::move(body), {}});
  if (started_) {
    launch(members_.back());
  }
  return job;
}

void Runtime::start() {
  std::lock_guard lock(mutex_);
  if (started_ || closed_) {
    return;
  }
  engine_->coordinator.open();
  started_ = true;
  for (Member& member : members_) {
    launch(member);
  }
}

void Runtime::launch(Member& member) {
  member.thread =
      std::thread([job = member.job, body = std::move(member.body)]() mutable { job->run(std::move(body)); });
  pthread_setname_np(member.thread.native_handle(), member.job->spec().name.substr(0, kLongestThreadName).c_str());
}

bool Runtime::wait(std::chrono::nanoseconds timeout) {
  const auto now = engine_->now();
  return engine_->coordinator.wait_all(timeout < kNever - now ? now + timeout : kNever);
}

void Runtime::cancel_all() {
  for (const auto& job : jobs()) {
    job->cancel();
  }
}

std::vector<std::shared_ptr<Job>> Runtime::jobs() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Job>> jobs;
  for (const Member& member : members_) {
    jobs.push_back(member.job);
  }
  return jobs;
}

std::vector<std::string> Runtime::close(std::chrono::nanoseconds patience) {
  cancel_all();
  wait(patience);
  std::vector<Member> members;
  bool was_started = false;
  {
    std::lock_guard lock(mutex_);
    members.swap(members_);
    was_started = started_ && !closed_;
    closed_ = true;
  }
  std::vector<std::string> given_up;
  for (Member& member : members) {
    if (!is_terminal(member.job->state())) {
      given_up.push_back(member.job->spec().name);
      member.job->give_up();
      member.thread.detach();
    } else if (member.thread.joinable()) {
      member.thread.join();
    }
  }
  if (was_started) {
    at::set_num_threads(former_threads_);  // torch keeps the last number given as the default of new threads
  }
  return given_up;
}

}  // namespace torchshare
