#include <fmt/format.h>

#include <new>
#include <utility>

#include "runtime/job.h"
#include "runtime/job_thread.h"

namespace torchshare {

void RuntimeJob::run(Body body) {
  become_jobs_thread();
  if (!runtime_->coordinator.wait_to_start(id())) {
    leave();
    return;
  }
  times_.begin_body();
  const JobState end = run_body(body);
  body = nullptr;  // release its state before reporting the end
  times_.end_body();
  leave();
  parts_.send(JobMessage::Kind::kEnded, 0, end);
}

void RuntimeJob::leave() {
  times_.close();
  has_left_.store(true, std::memory_order_release);
}

/// Held by the job's thread while its body runs: the device scope, memberships of the gate and the stall watch.
class RuntimeJob::InBody {
 public:
  InBody(RuntimeJob& job, DeviceScope& device)
      : job_(job),
        member_(job.runtime_->gate, job.slot_, device.stream()),
        watched_(job.runtime_->stall_watch, job.slot_, *job.priority_),
        shares_(job.runtime_->memory_shares, job.budget_, job.spec_.memory_budget.has_value(),
                [&job] { job.record_budget(); }) {
    job_.device_ = &device;
    job_.stream_ = device.stream();
    if (job_.stream_ != nullptr && job_.watch_ != nullptr) {
      job_.watch_->follow(job_.stream_);
    }
    job_.device_generator_ = device.generator();
    job_.sms_.store(device.sms().value_or(0));
    job_.in_body_.store(true);
    job_.serving_threads_.open({job_.memory_, job_.stream_, job_.device_generator_});
  }
  ~InBody() {
    job_.units_.close();
    job_.runtime_->gate.set(job_.slot_, kLeaves);
    job_.serving_threads_.close();
    job_.in_body_.store(false);
    job_.times_.read_thread();
    job_.priority_->raise();  // the cleanup takes locks that other threads wait for
    if (job_.watch_ != nullptr) {
      job_.watch_->unfollow();
    }
    job_.device_ = nullptr;
    job_.stream_ = nullptr;
    job_.device_generator_ = {};
  }
  InBody(const InBody&) = delete;  // bound to a thread
  InBody& operator=(const InBody&) = delete;

 private:
  RuntimeJob& job_;
  const Gate::Membership member_;
  const StallWatch::Member watched_;
  const MemoryShares::Member shares_;
};

JobState RuntimeJob::run_body(const Body& body) {
  DeviceRequest request{.job = spec_.name,
                        .priority = runtime_->priority_of(spec_.priority),
                        .seed = spec_.seed,
                        .sms = spec_.sms,
                        .after = std::exchange(submitted_, nullptr)};
  JobState end = JobState::kFinished;
  try {
    own_memory();
    JobThread thread(*runtime_->device, *priority_, request, *this, spec_.threads, memory_);
    request.after = nullptr;
    const InBody in_body(*this, thread.device());
    body(*this);
    synchronize();
  } catch (const Cancelled&) {
    end = JobState::kCancelled;
  } catch (const std::exception& error) {
    // TorchScript converts a cancellation into its own error.
    end = cancel_requested() ? JobState::kCancelled : JobState::kFailed;
    set_error(error);
  }
  memory_.reset();
  return end;
}

void RuntimeJob::set_error(const std::exception& error) noexcept {
  try {
    error_ = error.what();
  } catch (const std::bad_alloc&) {
    error_ = "out of memory";  // short enough to need none
  }
}

/// Jobs on a GPU are always metered: it is cheap beside the launches, and detects tensors that cross jobs.
MemoryOwner::Options RuntimeJob::memory_options() const {
  const Device& device = *runtime_->device;
  return {
      .meters = spec_.meter_memory || spec_.memory_budget || device.is_asynchronous(),
      .caches = spec_.cache_memory && device.memory().is_cpu(),
  };
}

/// Only jobs that run own memory: there are few owners, and jobs may wait in a long queue.
void RuntimeJob::own_memory() {
  if (const MemoryOwner::Options options = memory_options(); options.meters || options.caches) {
    memory_ = std::make_shared<MemoryOwner>(budget_, runtime_->device->memory(), options);
    if (!memory_->is_identified()) {
      TORCH_WARN("job '", spec_.name,
                 "': so many jobs run that its memory is not cached, and that its tensors are "
                 "not told from others'");
    }
  }
}

void RuntimeJob::record_budget() {
  const std::int64_t limit = budget_->limit();
  runtime_->timeline.record_decision(id(), runtime_->now(), [&] {
    return limit == MemoryBudget::kUnlimited ? std::string("memory budget: none, no other job runs")
                                             : fmt::format("memory budget: {:.1f} MiB, an even share of what is free",
                                                           static_cast<double>(limit) / (1 << 20));
  });
}

}  // namespace torchshare
