#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

#include "sharing/start_rule.h"

namespace torchshare {

/// "after:<job>": starts when the job of that name has ended, in any state.
class StartAfterJob final : public StartRule {
 public:
  explicit StartAfterJob(std::string_view job) : job_(job) {}
  static std::shared_ptr<StartRule> parse(std::string_view text) {
    const bool fits = text.starts_with(kPrefix) && text.size() > kPrefix.size();
    return fits ? std::make_shared<StartAfterJob>(text.substr(kPrefix.size())) : nullptr;
  }
  StartInputs inputs() const override { return {.jobs = true}; }
  StartDecision decide(const StartView& view) const override { return start_at_end(text(), awaited(view)); }
  const JobRecord* awaited(const StartView& view) const override { return view.jobs.find(job_); }
  std::string fault(const StartView& view) const override {
    const JobRecord* const job = awaited(view);
    if (job == nullptr) {
      return fmt::format("start '{}' names no job of this runtime", text());
    }
    return job->id == view.job.id ? fmt::format("start '{}' waits for itself", text()) : "";
  }

 private:
  static constexpr std::string_view kPrefix = "after:";
  std::string text() const { return fmt::format("{}{}", kPrefix, job_); }

  const std::string job_;
};

}  // namespace torchshare
