#include "sharing/start_rule.h"

#include <fmt/format.h>

namespace torchshare {

StartDecision start_at_end(const std::string& rule, const JobRecord* awaited) {
  if (awaited == nullptr) {
    return {.start = true, .reason = rule};
  }
  if (!is_terminal(awaited->state)) {
    return {};
  }
  return {.start = true,
          .reason = fmt::format("{}: job '{}' {} after {} steps", rule, awaited->name, to_string(awaited->state),
                                awaited->all_steps())};
}

}  // namespace torchshare
