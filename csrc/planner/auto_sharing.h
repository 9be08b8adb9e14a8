#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/job_id.h"
#include "model/priority.h"
#include "model/step_meter.h"
#include "planner/pair_planner.h"

namespace torchshare {

/// What a job's profile says: its step alone, and the ratios beside others by the names of their profiles.
struct ProfiledJob {
  struct Ratios {
    double own;
    double other;
  };
  std::string name;
  double step = 0;  ///< seconds
  std::map<std::string, Ratios> beside = {};
};

struct SharedJob {
  std::string name;
  Priority priority = Priority::kSecondary;
  bool automatic = false;            ///< it starts when AutoSharing says so
  bool starts_now = false;           ///< nothing holds back its start
  std::optional<double> steps = {};  ///< declared, of the whole job
  std::optional<ProfiledJob> profile = {};
};

/// Decides which of a device's jobs run, at most two at a time, so that their average completion time is least: for
/// jobs with profiles by plan_pair at once; for others after a probe, that is a few steps of the first alone, of both,
/// and of the second alone. Decides again when a job arrives or ends, or its steps change their pace; a job that runs
/// alone and does not get on lets the other in meanwhile.
///
/// Pure: told what happens and when, in seconds of any clock that does not go back. Its orders are taken as carried
/// out.
class AutoSharing {
 public:
  enum class Action { kStart, kHold, kRelease, kStay };  ///< kStay: planned anew, nothing changes
  struct Order {
    JobId job;
    Action action;
    std::string reason;  ///< with the numbers behind it
  };

  /// With `max_slowdown`, a loop of its own holds the primary to that bound, so that no job is ever held for another.
  explicit AutoSharing(std::optional<double> max_slowdown) : max_slowdown_(max_slowdown) {}

  /// Ids ascend. Throws std::invalid_argument for a profile or a number of steps that makes no sense.
  void arrive(JobId id, SharedJob job);
  /// A job that is not automatic runs.
  void start(JobId id, double now);
  void step(JobId id, double now);
  /// Its user suspended the job, or lets it go on.
  void suspend(JobId id, bool suspended);
  void end(JobId id);
  /// Where its loader's length is known: the job will have done that many steps when this pass over it ends, or for
  /// good.
  void expect(JobId id, double steps, bool for_good);

  std::vector<Order> decide(double now);
  /// When to decide again though nothing happens.
  double retry_at() const { return retry_at_; }

 private:
  enum class State { kNotStarted, kRunning, kHeld, kEnded };
  enum class Running { kFirst, kBoth, kSecond };  // of a pair

  struct Entry {
    SharedJob job;
    State state = State::kNotStarted;
    std::optional<double> pass_ends = {};  // steps
    double steps = 0;
    double last_sign = 0;    // when it last started, went on or ended a step
    double last_period = 0;  // seconds of its last step, whatever ran beside it
    bool suspended = false;  // by its user
    std::uint64_t epoch = 0;
    StepMeter alone = {};
    StepMeter recent = {};  // since who runs last changed, or a plan was made
  };

  /// The first came before the second. Index 0 and 1 in the arrays.
  struct Pair {
    JobId first;
    JobId second;
    Running running = Running::kFirst;
    bool planned = false;
    bool fresh = false;   // the plan was not told yet
    bool let_in = false;  // both run because the one that should does not get on
    // Of the last probe, which goes through these kinds of steps in turn.
    bool probed = false;
    Running probing = Running::kFirst;
    double both_began = 0;  // when the second had its first step beside the first
    double both_steps = 0;  // of the second, then
    double probe_began = 0;
    double probe_ended = 0;
    StepMeter together[2] = {};
    // As last planned with.
    double alone[2] = {};  // seconds a step
    double ratios[2] = {};
    double assumed[2] = {};  // seconds a step, as the plan has it; 0: not running in it
    std::string reason = {};
  };

  Pair& pair(JobId first, JobId second);
  void settle(Pair& pair, double now);
  Running choose(Pair& pair, double now);
  bool believe_profiles(Pair& pair) const;
  std::optional<Running> probe(Pair& pair, double now);
  bool knows_both(Pair& pair, double budget, double now) const;
  bool changed_pace(Pair& pair) const;
  void probe_again(Pair& pair, double now);
  void plan(Pair& pair);
  bool stalls(const Entry& entry, double now);

  double remaining_alone(const Pair& pair, int which) const;
  std::optional<double> remaining_steps(const Entry& entry) const;
  void order(JobId id, bool run, const std::string& reason, double now);
  std::vector<JobId> in_state(State state, State or_state) const;
  std::vector<JobId> waiting() const;
  void change_who_runs();
  Entry& entry(const Pair& pair, int which) { return entries_.at(which == 0 ? pair.first : pair.second); }
  const Entry& entry(const Pair& pair, int which) const { return entries_.at(which == 0 ? pair.first : pair.second); }

  const std::optional<double> max_slowdown_;
  std::map<JobId, Entry> entries_;
  std::map<std::pair<JobId, JobId>, Pair> pairs_;
  std::uint64_t epoch_ = 1;  // counts changes of who runs
  bool any_automatic_ = false;
  std::vector<Order> orders_;
  double retry_at_ = std::numeric_limits<double>::infinity();
};

}  // namespace torchshare
