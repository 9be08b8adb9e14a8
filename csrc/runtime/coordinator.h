#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/clock.h"
#include "gate/gate.h"
#include "model/event.h"
#include "runtime/ended_jobs.h"
#include "runtime/inbox.h"
#include "runtime/job_report.h"
#include "runtime/timeline.h"
#include "sharing/auto_sharing.h"
#include "sharing/slowdown_bound.h"
#include "sharing/start_policy.h"

namespace torchshare {

/// Description of a new job.
struct NewJob {
  std::string name;
  Priority priority = Priority::kSecondary;
  StartCondition start = StartNow{};
  std::optional<double> steps = {};  ///< of the whole job, if declared
  std::optional<ProfiledJob> profile = {};
};

/// Tracks the state and the steps of every job. Decides when a waiting job may start, and which jobs are held for
/// another: to keep the bound on the primary's slowdown, or because `start="auto"` found it best. Records every change
/// and every decision in the timeline. Any thread.
///
/// With `resident`, a job takes one of that many places from its start to its end, also while it is suspended, but not
/// while it is spilled; when it is restored, it waits for memory only. Jobs whose start condition holds get the places
/// in order of priority, then of arrival. Automatic jobs come last: AutoSharing chooses among them for the places that
/// are left.
///
/// A job that has ended leaves a record; the work of a step does not grow with their number.
///
/// Running jobs never wait for decisions: they put reports into an inbox, and a thread of ordinary priority applies
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

  /// Throws std::invalid_argument for an invalid bound, and for no place.
  Coordinator(Clock& clock, Timeline& timeline, Gate& gate, std::optional<double> max_slowdown = {},
              std::optional<std::size_t> resident = {});
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Registers a pending job; `slot` and `status` must outlive the registration. Throws std::invalid_argument for a
  /// name that is empty or in use and for an invalid profile; after `open`, also for a start condition that can never
  /// hold.
  [[nodiscard]] Registration add(NewJob new_job, Slot& slot, JobStatus& status);
  /// Ends the setup: checks every start condition (see check_starts), now and at every later `add`.
  void open();

  // With several ranks, the first one decides for all which jobs start and which are held: ranks that run different
  // jobs would wait for each other. It also keeps the bound for all; see `Gate::set_pace`.
  /// Called before `open` on the other ranks: leaves these decisions to `obey`. Without `resident`, jobs that start now
  /// do not wait.
  void follow_orders();
  /// An order about a job that is not added yet is carried out when it is.
  void obey(const AutoSharing::Order& order);
  /// Called before `open` on the first rank: its decisions are kept for `take_orders`.
  void keep_orders();
  /// The decisions made since the last call.
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

  /// Takes no lock. Ignores reports that do not fit the job's state: it may have ended in the meantime.
  void report(const JobReport& report);
  /// Applies reports and makes due decisions, until `dismiss`. On its own thread of ordinary priority.
  void serve();
  void dismiss();
  /// One iteration of `serve`. Returns when to run the next one even if nothing is reported.
  std::chrono::nanoseconds attend();

  /// The names of all jobs, in order of submission.
  std::vector<std::string> names() const;
  /// How many jobs have not ended, or not left a record yet.
  std::size_t size() const;
  /// Empty if the job had no bound to keep.
  std::optional<BoundStats> bound(JobId job) const;

  /// Waits until every job has ended, or until `deadline`; returns whether they have.
  bool wait_all(std::chrono::nanoseconds deadline);

 private:
  // How often steps wake `serve`: without and with pending decisions that depend on them.
  static constexpr std::chrono::nanoseconds kNewsInterval = std::chrono::milliseconds(20);
  static constexpr std::chrono::nanoseconds kNewsIntervalForDecisions = std::chrono::milliseconds(1);
  static constexpr std::chrono::nanoseconds kTryAgain = std::chrono::milliseconds(10);  // without memory

  enum class Wait { kNone, kForStart, kStarted };

  struct Entry {
    NewJob told;
    Slot* slot;  // null once the job is withdrawn
    JobStatus* status;
    std::chrono::nanoseconds arrival;
    JobState state = JobState::kPending;
    std::uint64_t steps = 0;          // of this run
    std::uint64_t earlier_steps = 0;  // of earlier ones
    Wait wait = Wait::kNone;
    bool is_inside = false;  // its thread is in wait_to_start
    bool start_cancelled = false;
    bool start_ordered = false;
    bool held = false;
    bool spilled = false;
    bool replaced = false;                   // it has ended, and another job has its name
    std::chrono::nanoseconds last_step{0};   // its end; 0: none since the job's last change of state
    std::unique_ptr<SlowdownBound> bound{};  // once it is the primary of a runtime with a bound

    bool named() const { return slot != nullptr && !replaced; }
  };

  /// Null if the job has ended.
  Entry* find(JobId job);
  /// Makes records of the jobs that have ended; tries again later without memory.
  void retire_ended() noexcept;
  static JobRecord record_of(JobId job, const Entry& entry);
  bool has_named(std::string_view name) const;

  // Note [Without memory]
  // A decision that finds no memory is made again a moment later, by `attend`; one that was made is carried out and
  // kept without allocating. What happened to a job is always noted: its reports are applied without allocating, and
  // events that cannot be recorded are dropped. So no job waits for ever, and none ends the process.

  /// Starts `job` if it waits and may start now. Returns when to call this again even if nothing else changes.
  std::chrono::nanoseconds decide(JobId job) noexcept;
  void try_again() noexcept;
  std::chrono::nanoseconds try_to_decide(JobId job);
  std::size_t free_places() const;
  /// Whether a place is left for `job`, whose start condition holds.
  bool has_place(JobId job) const;
  StartDecision start_condition(JobId job) const;
  /// Called when a job's state or steps changed. Decides for every waiting job on this thread, so that a job starts at
  /// the step it waits for, not when its own thread, possibly of idle priority, is scheduled.
  void decide_waiting();
  /// Carries out the current decisions of sharing_.
  void share() noexcept;
  void try_to_share();
  /// Carries out decisions, and keeps them for other ranks.
  void issue(AutoSharing::Orders orders) noexcept;
  void carry_out(const AutoSharing::Order& order) noexcept;
  void withdraw(JobId job);
  std::unique_lock<std::mutex> lock_up_to_date();
  void take_reports();
  void set_news();
  void apply(const JobReport& report);
  void count_step(const JobReport& report);
  void keep_bound(JobId job, std::chrono::nanoseconds now);
  template <class Describe>
  void record_decision(JobId job, Describe what);
  bool has_lower_beside(JobId job) const;
  bool is_outranked(JobId job) const;

  std::vector<JobView> views() const;
  bool move(JobId job, JobState to, std::chrono::nanoseconds at);
  bool all_ended() const;

  Clock& clock_;
  Timeline& timeline_;
  Gate& gate_;
  const std::optional<double> max_slowdown_;
  const std::optional<std::size_t> resident_;
  Inbox<JobReport> inbox_;  // emptied under the lock
  EventCount news_;         // notified of urgent reports and of dismissed_
  std::atomic<std::chrono::nanoseconds> last_news_{std::chrono::nanoseconds(0)};
  std::atomic<std::chrono::nanoseconds> news_every_{kNewsInterval};
  std::atomic<bool> dismissed_{false};
  EventCount changed_;              // the fields below
  mutable std::mutex mutex_;        // guards every field below
  std::map<JobId, Entry> entries_;  // of jobs that have not ended
  EndedJobs ended_;
  bool any_ended_ = false;          // of entries_
  std::vector<std::string> names_;  // by JobId
  bool open_ = false;
  bool any_automatic_ = false;
  bool follows_ = false;
  bool keeps_orders_ = false;
  AutoSharing::Orders orders_;                    // not taken yet
  std::vector<AutoSharing::Order> early_orders_;  // about jobs that are not added yet
  int starting_ = 0;                              // jobs inside wait_to_start
  AutoSharing sharing_;
  std::chrono::nanoseconds try_again_ = kNever;  // there was no memory to decide
};

}  // namespace torchshare
