#pragma once

#include <memory>
#include <string_view>

#include "sharing/start_rule.h"

namespace torchshare {

/// "now": starts at once.
class StartNow final : public StartRule {
 public:
  static std::shared_ptr<StartRule> parse(std::string_view text) {
    return text == "now" ? std::make_shared<StartNow>() : nullptr;
  }
  StartInputs inputs() const override { return {}; }
  StartDecision decide(const StartView&) const override { return {.start = true, .reason = "now"}; }
};

}  // namespace torchshare
