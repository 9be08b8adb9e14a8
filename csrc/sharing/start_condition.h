#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace torchshare {

struct StartNow {};
/// When the named job has ended, however it ended.
struct StartAfterJob {
  std::string job;
};
/// When the primary has done `step` steps, or has ended.
struct StartAtStep {
  std::uint64_t step;
};
/// `delay` after the job's arrival.
struct StartAfterDelay {
  std::chrono::nanoseconds delay;
};

/// When the coordinator finds it best.
struct StartAuto {};

/// What a job waits for before it runs: its sharing time point, given by the user.
using StartCondition = std::variant<StartNow, StartAfterJob, StartAtStep, StartAfterDelay, StartAuto>;

/// Reads "now", "auto", "after:<job>", "step:<k>" or a number of seconds. Throws std::invalid_argument.
StartCondition parse_start(std::string_view text);
std::string to_string(const StartCondition& condition);

}  // namespace torchshare
