#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/clock.h"
#include "runtime/job_decisions.h"
#include "runtime/message_inbox.h"

namespace torchshare {

/// The JobDecisions of a runtime, for its jobs' threads and for its users. Any thread.
///
/// Running jobs never wait for decisions: they put messages into an inbox, and a thread of ordinary priority applies
/// them; see `serve` and Note [Priority inversion].
class Coordinator {
 public:
  /// The registration of a job; the destructor withdraws it. A job that has not ended by then counts as cancelled.
  class Registration {
   public:
    Registration() = default;
    Registration(Coordinator& coordinator, JobId job) : coordinator_(&coordinator), job_(job) {}
    ~Registration() { withdraw(); }
    Registration(Registration&& other) noexcept
        : coordinator_(std::exchange(other.coordinator_, nullptr)), job_(other.job_) {}
    Registration& operator=(Registration&& other) noexcept {
      withdraw();
      coordinator_ = std::exchange(other.coordinator_, nullptr);
      job_ = other.job_;
      return *this;
    }
    JobId job() const { return job_; }

   private:
    void withdraw() {
      if (coordinator_ != nullptr) {
        coordinator_->withdraw(job_);
      }
    }

    Coordinator* coordinator_ = nullptr;
    JobId job_ = 0;
  };

  /// Uses `max_slowdown`, `max_concurrent` and `keep` of the options. Throws std::invalid_argument.
  Coordinator(Clock& clock, Timeline& timeline, Gate& gate, const RuntimeOptions& options = {});
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Registers a pending job; `slot` and `status` must outlive the registration. Throws std::invalid_argument for a
  /// name that is empty or in use, an invalid start and an invalid profile; after `open`, also for a start that can
  /// never come.
  [[nodiscard]] Registration add(const NewJob& new_job, Slot& slot, JobStatus& status);
  /// Ends the setup: checks the start of every job (see StartCheck), now and at every later `add`.
  void open();

  // See RankOrders.
  /// Called before `open`. Without `max_concurrent`, jobs that start now do not wait.
  void follow_orders();
  /// An order about a job that is not added yet, or whose predecessors have not ended here, is kept until then.
  void obey(const AutoSharing::Order& order);
  /// Called before `open`.
  void keep_orders();
  AutoSharing::Orders take_orders();

  /// Waits until the job may start, in state delayed if necessary; then its state is running.
  /// Returns false if the job was cancelled instead; then its state is cancelled.
  bool wait_to_start(JobId job);
  /// Ends `wait_to_start`, now or when it is called, and releases the job. A pending job is cancelled at once.
  void cancel_start(JobId job);
  /// No job that was added starts any more. Called before all are cancelled.
  void cancel_starts();
  /// Counts a job as cancelled even if its thread is still running.
  void give_up(JobId job);

  /// See DeadlineKeeper::add.
  void make_periodic(JobId job, const PeriodicTask& task);
  /// Why the deadlines of periodic jobs cannot be met, as found since they were accepted; empty if they can.
  std::string deadline_problem() const;
  /// Whether there is such a problem. Takes no lock.
  bool has_deadline_problem() const { return decisions_.deadlines().has_problem(); }

  /// Takes no lock. Ignores messages that do not fit the job's state: it may have ended in the meantime.
  void send(const JobMessage& message);
  /// Applies messages and makes due decisions, until `dismiss`. On its own thread of ordinary priority.
  void serve();
  void dismiss() { inbox_.dismiss(); }
  /// One iteration of `serve`. Returns when to run the next one even without a message.
  std::chrono::nanoseconds serve_once();

  /// The names of all jobs, in order of submission.
  std::vector<std::string> names() const;
  /// How many jobs have not ended.
  std::size_t size() const;
  /// Empty if the job had no bound to keep, or if it is not kept any more.
  std::optional<BoundStats> bound(JobId job) const;
  /// Empty if the job has promised nothing, or if it is not kept any more.
  std::optional<LatencyStats> latency(JobId job) const;

  /// Waits until every job has ended, or until `deadline`; returns whether they have.
  bool wait_all(std::chrono::nanoseconds deadline);

 private:
  void withdraw(JobId job);
  /// Locks, catches up and, after messages, wakes the thread of `serve`.
  std::unique_lock<std::mutex> lock_up_to_date();
  /// Under the lock: applies the messages that have come, and erases jobs that have ended. Returns whether there were
  /// messages.
  bool catch_up();
  void wait_for_change(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds deadline);

  Clock& clock_;
  MessageInbox inbox_;        // emptied under the lock
  EventCount changed_;        // decisions_
  mutable std::mutex mutex_;  // guards decisions_
  JobDecisions decisions_;
};

}  // namespace torchshare
