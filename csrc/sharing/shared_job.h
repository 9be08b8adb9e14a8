#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "model/step_meter.h"
#include "model/time.h"
#include "torchshare/profile.h"
#include "torchshare/values.h"

namespace torchshare {

/// A job that may share a device.
struct SharedJob {
  std::string name;
  Priority priority = Priority::kSecondary;
  bool automatic = false;                                ///< AutoSharing decides when it starts
  bool starts_now = false;                               ///< its start has no condition
  std::optional<double> steps = {};                      ///< of its whole run, if declared
  std::optional<std::chrono::nanoseconds> ends_by = {};  ///< its deadline
  std::optional<ProfiledJob> profile = {};
};

/// A shared job at run time, with measurements of its steps.
struct SharedRun {
  enum class State { kNotStarted, kRunning, kHeld };

  SharedJob job;
  State state = State::kNotStarted;
  bool suspended = false;                ///< by its user
  bool answers = false;                  ///< requests
  std::optional<double> pass_ends = {};  ///< steps done when this pass over the loader ends
  double steps = 0;
  std::chrono::nanoseconds last_sign{0};  ///< time of its last start, resumption, end of a step or answer
  Seconds last_period = 0;                ///< between the last two of them
  std::uint64_t epoch = 0;                ///< AutoSharing's epoch at its last step
  StepMeter alone = {};
  StepMeter recent = {};  ///< since the running jobs last changed, or a plan was made
};

}  // namespace torchshare
