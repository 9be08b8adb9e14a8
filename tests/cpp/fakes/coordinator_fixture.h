#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fakes/fake_device.h"
#include "fakes/member.h"
#include "runtime/coordinator.h"

namespace torchshare {

/// A coordinator that reads a clock of this class, and what it needs: auto& [clock, timeline, gate, coordinator].
template <class ClockClass>
struct CoordinatorParts {
  explicit CoordinatorParts(const RuntimeOptions& options = {}) : coordinator(clock, timeline, gate, options) {}

  ClockClass clock;
  Timeline timeline{1000};
  Gate gate{make_gate_policy("priority", {}), clock};
  Coordinator coordinator;
};

/// A coordinator by the clock of the test, and its jobs.
class CoordinatorTest : public ::testing::Test {
 protected:
  Member& add(const std::string& name, Priority priority, const std::string& start) {
    return add({.name = name, .priority = priority, .start = start});
  }
  Member& add(NewJob told) {
    members_.push_back(std::make_unique<Member>(coordinator_, clock_, std::move(told)));
    return *members_.back();
  }
  std::future<bool> start(const Member& member) {
    return std::async(std::launch::async, [job = member.id(), this] { return coordinator_.wait_to_start(job); });
  }
  /// Waits until the job's thread has come.
  static bool is_delayed(const Member& member) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (member.state() == JobState::kPending && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return member.state() == JobState::kDelayed;
  }
  static bool still_waits(std::future<bool>& waiter) {
    return waiter.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
  }
  std::vector<std::string> details(const Member& member, EventKind kind) const {
    std::vector<std::string> found;
    for (const Event& event : timeline_.events()) {
      if (event.job == member.id() && event.kind == kind) {
        found.push_back(event.detail);
      }
    }
    return found;
  }

  /// The profile of a job, with its ratios beside "p<other>".
  Member& add_profiled(const std::string& name, Priority priority, const std::string& start, double step, double steps,
                       const std::string& other, double ratio) {
    return add({.name = name,
                .priority = priority,
                .start = start,
                .steps = steps,
                .profile = ProfiledJob{"p" + name, step, {{"p" + other, {ratio, ratio}}}}});
  }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("priority", {}), clock_};
  Coordinator coordinator_{clock_, timeline_, gate_};
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace torchshare
