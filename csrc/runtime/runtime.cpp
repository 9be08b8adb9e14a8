#include "torchshare/runtime.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <list>
#include <stdexcept>
#include <utility>

#include "gate/wake_cost.h"
#include "hook/op_hook.h"
#include "runtime/job.h"
#include "runtime/job_thread.h"
#include "runtime/job_threads.h"
#include "runtime/runtime_state.h"

namespace torchshare {
namespace {

constexpr std::chrono::nanoseconds kRunAhead = std::chrono::microseconds(500);
constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(2);

void check(const RuntimeOptions& options, const Device& device) {
  if (current_context != nullptr) {
    throw std::logic_error("a runtime cannot be opened inside a job; submit to the job's own runtime");
  }
  if (options.max_slowdown && options.secondary_share) {
    throw std::invalid_argument(
        "max_slowdown and secondary_share must not be given together: the bound sets the share");
  }
  if (const auto share = options.secondary_share; share && !(*share >= 0 && *share <= 1)) {
    throw std::invalid_argument(fmt::format("secondary_share must be from 0 to 1, got {}", *share));
  }
  if (options.gate.run_ahead && !device.is_asynchronous()) {
    throw std::invalid_argument(fmt::format("run_ahead needs an asynchronous device (cuda), got '{}'", device.name()));
  }
}

std::shared_ptr<RuntimeState> make_state(std::shared_ptr<Device> device, RuntimeOptions options) {
  check(options, *device);
  const bool holds_jobs = options.policy != "priority" || options.max_slowdown || options.secondary_share;
  if (device->is_asynchronous() && holds_jobs) {
    options.gate.run_ahead = options.gate.run_ahead.value_or(kRunAhead);
  }
  auto policy = make_gate_policy(options.policy, options.gate);
  if (!options.shortest_gap && policy->forecasts()) {
    options.shortest_gap = measure_wake_cost().shortest_gap();
  }
  const auto share = options.secondary_share;
  auto state = std::make_shared<RuntimeState>(std::move(device), std::move(policy), std::move(options));
  if (share) {
    state->gate.set_pace({.share = *share});
  }
  return state;
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const RuntimeOptions& options)
    : state_(make_state(std::move(device), options)),
      former_threads_(at::get_num_threads()),
      process_(getpid()),
      jobs_(std::make_shared<JobThreads>()) {
  // Not in the first job's thread: a process forked in the meantime would inherit torch's locks in a locked state, and
  // torch's pool waits forever for threads that it could not create.
  install_op_hook();
  set_intra_op_threads(former_threads_);
}

Runtime::~Runtime() {
  if (process_ == getpid()) {
    close(kPatience);
    return;
  }
  // The threads are the parent's; the child leaks their state.
  new auto(state_);
  new auto(jobs_);
  new auto(std::move(coordinator_));
  new auto(std::move(stall_watch_));
}

void Runtime::check_process() const {
  if (process_ != getpid()) {
    throw std::logic_error(
        fmt::format("the runtime belongs to process {}; a forked process must open its own", process_));
  }
}

std::shared_ptr<Job> Runtime::submit(JobSpec spec, Job::Body body) {
  return submit(std::move(spec), std::move(body), std::make_unique<LanguageBinding>());
}

std::shared_ptr<RuntimeJob> Runtime::submit(JobSpec spec, Job::Body body, std::unique_ptr<LanguageBinding> language,
                                            const RuntimeJob* replaces) {
  check_process();
  std::lock_guard lock(mutex_);
  if (closed_) {
    throw std::logic_error("the runtime is closed; submit before close");
  }
  state_->device->check();
  auto job = std::make_shared<RuntimeJob>(state_, std::move(spec), std::move(language), replaces);
  if (started_) {
    jobs_->start(job, std::move(body));
  } else {
    jobs_->add(job, std::move(body));
  }
  return job;
}

void Runtime::start() {
  check_process();
  std::lock_guard lock(mutex_);
  if (closed_) {
    return;
  }
  if (!started_) {
    state_->coordinator.open();
    start_helpers();
    started_ = true;
  }
  jobs_->start_all();
}

void Runtime::start_helpers() {
  const auto start = [](std::thread& thread, const char* name, auto serve) {
    if (thread.joinable()) {
      return;
    }
    try {
      thread = std::thread(serve);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("the thread {} cannot be created: {}", name, error.what()));
    }
    pthread_setname_np(thread.native_handle(), name);
  };
  start(coordinator_, "ts-coordinator", [this] { state_->coordinator.serve(); });
  if (state_->options.device_priority != DevicePriority::kNone) {
    start(stall_watch_, "ts-stall-watch", [this] { state_->stall_watch.serve(); });
  }
}

void Runtime::stop_helpers() {
  state_->coordinator.dismiss();
  state_->stall_watch.dismiss();
  for (std::thread* const thread : {&coordinator_, &stall_watch_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
}

bool Runtime::wait(std::chrono::nanoseconds timeout) {
  check_process();
  const auto now = state_->now();
  return state_->coordinator.wait_all(timeout < kNever - now ? now + timeout : kNever);
}

void Runtime::cancel_all() {
  check_process();
  state_->coordinator.cancel_starts();  // first: the end of one job would start another
  jobs_->cancel_all();
}

void Runtime::begin_close() {
  check_process();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  cancel_all();
}

std::vector<std::string> Runtime::close(std::chrono::nanoseconds patience) {
  begin_close();
  wait(patience);
  bool was_started = false;
  {
    std::lock_guard lock(mutex_);
    was_started = std::exchange(started_, false);
    stop_helpers();  // `start` may have created only some of them
  }
  std::list<JobThreads::Member> members = jobs_->take();
  for (JobThreads::Member& member : members) {
    const bool ends = member.job->has_left() || (is_terminal(member.job->state()) && !member.job->is_given_up());
    if (member.thread.joinable() && !ends) {
      member.job->give_up();
      member.thread.detach();
    } else if (member.thread.joinable()) {
      member.thread.join();
    }
  }
  state_->coordinator.serve_once();
  if (was_started) {
    set_intra_op_threads(former_threads_);  // torch uses the last number set as the default of new threads
  }
  std::vector<std::string> given_up;
  for (const JobThreads::Member& member : members) {
    if (member.job->is_given_up() && !member.job->has_left()) {
      given_up.push_back(member.job->spec().name);
    }
  }
  return given_up;
}

}  // namespace torchshare
