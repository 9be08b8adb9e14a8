#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/parse_number.h"
#include "sharing/start_rule.h"

namespace torchshare {

/// "step:<k>": starts when the primary has done k steps, or has ended. The primary is the first of the highest priority
/// among the other jobs, unless the waiting job outranks it.
class StartAtStep final : public StartRule {
 public:
  explicit StartAtStep(std::uint64_t step) : step_(step) {}
  static std::shared_ptr<StartRule> parse(std::string_view text) {
    const bool fits = text.starts_with(kPrefix);
    const auto step = fits ? parse_number<std::uint64_t>(text.substr(kPrefix.size())) : std::nullopt;
    return step ? std::make_shared<StartAtStep>(*step) : nullptr;
  }
  StartInputs inputs() const override { return {.jobs = true, .steps = true}; }
  StartDecision decide(const StartView& view) const override {
    const JobRecord* const primary = awaited(view);
    if (primary == nullptr || is_terminal(primary->state) || !enough(primary->all_steps())) {
      return start_at_end(text(), primary);
    }
    return {.start = true,
            .reason = fmt::format("{}: job '{}' has done {} steps", text(), primary->name, primary->all_steps())};
  }
  const JobRecord* awaited(const StartView& view) const override {
    const JobRecord* const first = view.jobs.first_beside(view.job);
    return first != nullptr && !outranks(view.job.priority, first->priority) ? first : nullptr;
  }
  std::string fault(const StartView& view) const override {
    return awaited(view) != nullptr
               ? ""
               : fmt::format("start '{}' needs a job of the same or higher priority whose steps to count", text());
  }
  bool enough(std::uint64_t steps) const override { return steps >= step_; }

 private:
  static constexpr std::string_view kPrefix = "step:";
  std::string text() const { return fmt::format("{}{}", kPrefix, step_); }

  const std::uint64_t step_;
};

}  // namespace torchshare
