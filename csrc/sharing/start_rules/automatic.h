#pragma once

#include <memory>
#include <string_view>

#include "sharing/start_rule.h"

namespace torchshare {

/// "auto": starts when AutoSharing finds it best, by the steps of all jobs.
class StartAuto final : public StartRule {
 public:
  static std::shared_ptr<StartRule> parse(std::string_view text) {
    return text == "auto" ? std::make_shared<StartAuto>() : nullptr;
  }
  StartInputs inputs() const override { return {.steps = true, .plan = true}; }
  StartDecision decide(const StartView&) const override { return {}; }
};

}  // namespace torchshare
