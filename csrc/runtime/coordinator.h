#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/clock.h"
#include "gate/gate.h"
#include "model/event.h"
#include "planner/auto_sharing.h"
#include "policy/slowdown_bound.h"
#include "policy/start_policy.h"
#include "runtime/inbox.h"
#include "runtime/job_report.h"
#include "runtime/timeline.h"

namespace torchshare {

/// What the coordinator is to know of a job when it comes.
struct Admission {
  std::string name;
  Priority priority = Priority::kSecondary;
  StartCondition start = StartNow{};
  std::optional<double> steps = {};  ///< of the whole job, where it is declared
  std::optional<ProfiledJob> profile = {};
};

/// How the primary was held to its bound.
struct BoundStats {
  std::uint64_t windows = 0;  ///< seconds in which others ran beside it
  std::uint64_t windows_inside = 0;
  double alone = 0;  ///< seconds of a step
  double loss = 0;   ///< share of the time in which others may run that it loses to them
  double share = 1;  ///< in which they may run, as last set
};

/// Knows the state and the steps of every job, when a waiting one may start, and which must wait for another's sake: to
/// keep the bound on the primary's slowdown, or because `start="auto"` found it best. Any thread.
/// Every change and every decision goes to the timeline.
///
/// Jobs that run take no part in deciding, and never wait for it: they leave reports, which a thread of ordinary
/// priority applies, see `serve` and Note [Priority inversion].
class Coordinator {
 public:
  /// A job's place at the coordinator; the destructor withdraws it. One that has not ended counts as cancelled then.
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

  /// Throws std::invalid_argument for a bound that makes no sense.
  Coordinator(Clock& clock, Timeline& timeline, Gate& gate, std::optional<double> max_slowdown = {});
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// A new job, pending; `slot` and `status` must outlive its registration. Throws std::invalid_argument for a name
  /// that is empty or taken and a profile that makes no sense; after `open`, also for a start condition that cannot
  /// come true.
  [[nodiscard]] Registration add(Admission admission, Slot& slot, JobStatus& status);
  /// No more forward references: checks every start condition (see check_starts), now and at every later `add`.
  void open();

  /// Waits, as delayed where need be, until the job may start; then it is running.
  /// Returns false when the job was cancelled instead: then it is cancelled.
  bool wait_to_start(JobId job);
  /// Ends `wait_to_start`, now or later, and holds the job no more. A job that is still pending is cancelled at once.
  void cancel_start(JobId job);
  /// Counts a job as cancelled whatever its thread does, or will do.
  void give_up(JobId job);

  /// Takes no lock. What the job's life does not have is ignored, for it may have ended meanwhile.
  void report(const JobReport& report);
  /// Applies reports, and decides when that is due, until `dismiss`: on a thread of its own, of ordinary priority.
  void serve();
  void dismiss();
  /// Does it once. Returns when to look again though nothing is reported.
  std::chrono::nanoseconds attend();

  std::vector<std::string> names() const;
  /// Nothing where the job was not held to a bound.
  std::optional<BoundStats> bound(JobId job) const;

  /// Waits until every job has ended, or until `deadline`; returns whether they have.
  bool wait_all(std::chrono::nanoseconds deadline);

 private:
  // How often steps wake the thread in `serve`.
  static constexpr std::chrono::nanoseconds kNewsNobodyNeeds = std::chrono::milliseconds(20);
  static constexpr std::chrono::nanoseconds kNewsForDecisions = std::chrono::milliseconds(1);

  enum class Wait { kNone, kForStart, kStarted };

  struct Entry {
    Admission told;
    Slot* slot;         // null once the job was withdrawn
    JobStatus* status;  // the same
    std::chrono::nanoseconds arrival;
    JobState state = JobState::kPending;
    std::uint64_t steps = 0;
    Wait wait = Wait::kNone;
    bool start_cancelled = false;
    bool sharing_started = false;  // by the word of sharing_
    bool held = false;
    std::chrono::nanoseconds last_step{0};   // when it ended; 0: none since the job's last move
    std::unique_ptr<SlowdownBound> bound{};  // once it was the primary in a runtime with a bound
  };

  /// Starts `job` if it waits and may start now. Returns when to look again though nothing else changes.
  std::chrono::nanoseconds decide(JobId job);
  /// A job's state or steps changed: decides for every waiting job here and now, so that a start is at the step it
  /// waits for and not whenever the waiting thread, which may be an idle-priority one, gets to look.
  void decide_waiting();
  /// Carries out what sharing_ says now.
  void share();
  void withdraw(JobId job);
  std::unique_lock<std::mutex> lock_up_to_date();
  void take_reports();
  void set_news();
  void apply(const JobReport& report);
  void count_step(const JobReport& report);
  void keep_bound(JobId job, std::chrono::nanoseconds now);
  void record_decision(JobId job, std::string what);
  bool has_lower_beside(JobId job) const;
  bool is_outranked(JobId job) const;

  std::vector<JobView> views() const;
  bool move(JobId job, JobState to, std::chrono::nanoseconds at);
  bool all_ended() const;

  Clock& clock_;
  Timeline& timeline_;
  Gate& gate_;
  const std::optional<double> max_slowdown_;
  Inbox<JobReport> inbox_;  // emptied under the lock
  EventCount news_;         // the inbox, where somebody cares, or dismissed_
  std::atomic<std::chrono::nanoseconds> last_news_{std::chrono::nanoseconds(0)};
  std::atomic<std::chrono::nanoseconds> news_every_{kNewsNobodyNeeds};
  std::atomic<bool> dismissed_{false};
  EventCount changed_;        // what is below
  mutable std::mutex mutex_;  // guards every field below
  std::vector<Entry> entries_;
  bool open_ = false;
  bool any_automatic_ = false;
  int starting_ = 0;  // jobs inside wait_to_start
  AutoSharing sharing_;
};

}  // namespace torchshare
