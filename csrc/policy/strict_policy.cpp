#include "policy/strict_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace torchshare {
namespace {

using namespace std::chrono_literals;

// A rival inside an op gives no sign when it leaves (its exit must cost nothing), so a waiter looks again this often.
constexpr std::chrono::nanoseconds kLookAgain = 50us;

}  // namespace

StrictPolicy::StrictPolicy(std::chrono::nanoseconds grace) : grace_(grace) {
  if (grace < 0ns || grace > 1s) {
    throw std::invalid_argument(fmt::format("grace of {} ns: expected 0 to 1,000,000,000", grace.count()));
  }
}

Verdict StrictPolicy::decide(std::span<const Rival> rivals) const {
  std::chrono::nanoseconds wait = 0ns;
  for (const Rival& rival : rivals) {
    if (rival.inside) {
      wait = std::max(wait, std::max(grace_, kLookAgain));
    } else if (!rival.idle && rival.quiet < grace_) {
      wait = std::max(wait, grace_ - rival.quiet);
    }
  }
  return {.admit = wait == 0ns, .retry_after = wait};
}

}  // namespace torchshare
