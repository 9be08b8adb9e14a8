#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gate/slot.h"
#include "model/periodic_task.h"
#include "runtime/job_message.h"
#include "runtime/timeline.h"
#include "sharing/job_records.h"
#include "sharing/shared_job.h"
#include "sharing/start_rule.h"
#include "torchshare/profile.h"

namespace torchshare {

/// Description of a new job.
struct NewJob {
  std::string name;
  Priority priority = Priority::kSecondary;
  std::string start = "now";
  std::vector<std::string> after = {};  ///< see parse_predecessor
  std::optional<double> steps = {};     ///< of the whole job, if declared
  std::optional<ProfiledJob> profile = {};
  std::optional<PeriodicTask> task = {};
  std::optional<std::chrono::nanoseconds> ends_by = {};  ///< its deadline
  std::optional<JobId> replaces = {};  ///< a job that is about to end, whose name and successors it gets
};

/// A job that has not ended.
struct LiveJob {
  enum class Wait { kNone, kForStart, kStarted };

  std::shared_ptr<JobRecord> record;
  JobRecords::Former former;  // has the name again if this job is withdrawn before it starts
  Slot* slot;                 // null once the job is withdrawn
  JobStatus* status;
  std::chrono::nanoseconds arrival;          // or when its predecessors have ended
  std::optional<SharedJob> to_arrive = {};   // for AutoSharing, until its predecessors have ended
  std::optional<double> profiled_step = {};  // seconds of a step alone
  Wait wait = Wait::kNone;
  std::chrono::nanoseconds retry_at = kNever;  // when to decide about its start again even if nothing happens
  bool is_inside = false;                      // its thread waits for the start
  bool start_cancelled = false;
  bool start_ordered = false;
  bool held = false;
  bool spilled = false;
  std::uint64_t answers = 0;  // to requests
  std::uint64_t answers_since_step = 0;
  std::uint64_t steps_unlike_bound = 0;   // see BoundKeeper
  std::chrono::nanoseconds last_step{0};  // its end; 0: none since the job's last change of state

  JobId id() const { return record->id; }
  Priority priority() const { return record->priority; }
  StartInputs start_inputs() const { return record->start->inputs(); }
  bool has_ended() const { return is_terminal(record->state); }
  bool awaits_others() const { return to_arrive.has_value(); }
};

/// The jobs of a runtime and their states. A job that has ended leaves its record, until another has its name. Records
/// every change of state in the timeline. Not thread-safe.
class JobTable {
 public:
  explicit JobTable(Timeline& timeline) : timeline_(timeline) {}

  /// Adds a pending job. Throws std::invalid_argument for a name that is empty or in use and for an invalid start.
  LiveJob& add(const NewJob& new_job, Slot& slot, JobStatus& status, std::chrono::nanoseconds now);
  /// Undoes the last `add`.
  void undo_add(LiveJob& job) noexcept;
  /// Gives the job's name back: no job waits for it any more.
  void forget_name(LiveJob& job) noexcept;
  void erase(JobId job) { live_.erase(job); }
  /// The jobs that wait for one job wait for another in its place.
  void replace_predecessor(JobId former, const std::shared_ptr<const JobRecord>& job) noexcept;

  /// Null if the job has ended.
  LiveJob* find(JobId job);
  /// Returns false if the job's state cannot become `to`.
  bool move(LiveJob& job, JobState to, std::chrono::nanoseconds at) noexcept;
  /// Erases the jobs that have ended and whose threads have left. Allocates nothing.
  void erase_ended() noexcept;

  std::map<JobId, LiveJob>& live() { return live_; }
  const std::map<JobId, LiveJob>& live() const { return live_; }
  const JobRecords& records() const { return records_; }
  /// The names of all jobs, by JobId.
  const std::vector<std::string>& names() const { return names_; }
  bool all_ended() const;

 private:
  Timeline& timeline_;
  std::map<JobId, LiveJob> live_;
  JobRecords records_;
  std::vector<std::string> names_;
  bool any_ended_ = false;  // of live_
};

/// True if a job that has begun and not ended outranks this one.
bool is_outranked(const JobTable& jobs, const LiveJob& job);
/// True if a job that this one outranks runs.
bool has_lower_beside(const JobTable& jobs, const LiveJob& job);

}  // namespace torchshare
