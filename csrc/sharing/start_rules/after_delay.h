#pragma once

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string_view>

#include "model/parse_number.h"
#include "model/time.h"
#include "sharing/start_rule.h"

namespace torchshare {

/// A number of seconds: starts that long after the job's arrival.
class StartAfterDelay final : public StartRule {
 public:
  explicit StartAfterDelay(Seconds delay) : delay_(delay) {}
  static std::shared_ptr<StartRule> parse(std::string_view text) {
    const auto delay = parse_number<Seconds>(text);
    return delay && *delay >= 0 && *delay <= kLongest ? std::make_shared<StartAfterDelay>(*delay) : nullptr;
  }
  StartInputs inputs() const override { return {.time = true}; }
  StartDecision decide(const StartView& view) const override {
    const auto left = from_seconds(delay_) - view.since_arrival;
    if (left.count() > 0) {
      return {.retry_after = left};
    }
    return {.start = true, .reason = fmt::format("{} s after arrival", delay_)};
  }

 private:
  static constexpr Seconds kLongest = 1e9;  // 31 years; keeps nanoseconds inside 64 bits

  const Seconds delay_;
};

}  // namespace torchshare
