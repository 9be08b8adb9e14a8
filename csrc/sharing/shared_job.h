#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/step_meter.h"
#include "torchshare/profile.h"
#include "torchshare/values.h"

namespace torchshare {

/// A job that may share a device.
struct SharedJob {
  std::string name;
  Priority priority = Priority::kSecondary;
  bool automatic = false;            ///< it starts when AutoSharing says so
  bool starts_now = false;           ///< its start has no condition
  std::optional<double> steps = {};  ///< of the whole job, if declared
  std::optional<ProfiledJob> profile = {};
};

/// The same job at run time, with what its steps have shown so far. Times in seconds.
struct SharedRun {
  enum class State { kNotStarted, kRunning, kHeld, kEnded };

  SharedJob job;
  State state = State::kNotStarted;
  bool suspended = false;                ///< by its user
  std::optional<double> pass_ends = {};  ///< steps
  double steps = 0;
  double last_sign = 0;     ///< when it last started, resumed or ended a step
  double last_period = 0;   ///< of its last step, whatever ran beside it
  std::uint64_t epoch = 0;  ///< of its last step: which jobs ran
  StepMeter alone = {};
  StepMeter recent = {};  ///< since the running jobs last changed, or a plan was made
};

}  // namespace torchshare
