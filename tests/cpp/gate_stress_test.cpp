#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "fakes/unknown_call.h"
#include "hook/op_context.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// The best-fit policy, with checks of its decisions. The gate calls it under its lock.
class Checked final : public GatePolicy {
 public:
  bool concerns(const Standing& mine, const Standing& other) const override { return policy_->concerns(mine, other); }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override {
    const Verdict verdict = policy_->decide(requester, competitors);
    EXPECT_GT(verdict.admit ? 1ns : verdict.retry_after, 0ns);
    EXPECT_LE(verdict.admit ? 1ns : verdict.retry_after, 1s);
    for (const Competitor& competitor : competitors) {
      const bool higher = outranks(competitor.priority, requester.priority);
      EXPECT_FALSE(outranks(requester.priority, competitor.priority));
      EXPECT_FALSE(verdict.admit && higher && competitor.inside) << "let in beside a higher job's op";
      EXPECT_FALSE(verdict.admit && higher && competitor.waits && competitor.op && requester.op &&
                   *competitor.op <= *requester.op)
          << "let in before a higher job whose op fits, too";
    }
    ++(verdict.admit ? admitted_ : refused_);
    return verdict;
  }
  int admitted() const { return admitted_; }
  int refused() const { return refused_; }

 private:
  const std::unique_ptr<GatePolicy> policy_ = make_gate_policy("best_fit", {});
  mutable int admitted_ = 0;
  mutable int refused_ = 0;
};

class Worker final : public OpContext {
 public:
  Worker(Priority priority, Gate& gate, Clock& clock)
      : OpContext(priority, at::detail::createCPUGenerator(0)), gate_(gate) {
    watch_ = std::make_unique<OpWatch>(slot_, gate, clock, WatchOptions{.shortest_gap = 100us});
    gate_.add(slot_);
  }
  ~Worker() override { gate_.remove(slot_); }
  void handle_interrupts() override {
    if (gate_.is_lower(slot_) && !gate_.try_enter(slot_)) {
      (void)gate_.wait_turn(slot_);
    }
  }
  void suspend_for_a_moment() {
    gate_.set(slot_, kSuspend);
    gate_.clear(slot_, kSuspend);
  }
  void wait_for_input(std::chrono::microseconds time) {
    gate_.set_idle(slot_, true);
    std::this_thread::sleep_for(time);
    gate_.set_idle(slot_, false);
    watch_->begin_batch();
  }

 private:
  Gate& gate_;
};

void busy_for(std::chrono::microseconds time) {
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
  }
}

/// The duration of the test; TORCHSHARE_STRESS_SECONDS overrides it.
std::chrono::seconds stress_time() {
  const char* const given = std::getenv("TORCHSHARE_STRESS_SECONDS");
  return std::chrono::seconds(given != nullptr ? std::atoi(given) : 3);
}

TEST(GateStress, TenJobsAtTenPrioritiesComeAndGoInOrderWithoutADeadlock) {
  SteadyClock clock;
  auto owned = std::make_unique<Checked>();
  const Checked& policy = *owned;
  Gate gate(std::move(owned), clock);
  const auto end = steady_clock::now() + stress_time();
  std::vector<std::jthread> threads;
  std::array<std::atomic<int>, 10> ops{};
  for (int level = 0; level < 10; ++level) {
    threads.emplace_back([&, level] {
      std::mt19937 random(static_cast<unsigned>(level));
      const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
      while (steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(up_to(5'000)));  // arrives at random
        Worker worker(static_cast<Priority>(level), gate, clock);
        for (int i = up_to(200); i > 0 && steady_clock::now() < end; --i) {
          {
            const auto kind = static_cast<std::uint64_t>(up_to(5));
            const Permit permit(&worker, UnknownCall{kind});
            busy_for(std::chrono::microseconds(10 * kind));
          }
          ++ops[static_cast<std::size_t>(level)];
          if (up_to(20) == 0) {
            worker.wait_for_input(std::chrono::microseconds(up_to(2'000)));
          }
          if (up_to(100) == 0) {
            worker.suspend_for_a_moment();
          }
        }
      }
    });
  }
  threads.clear();  // joins
  EXPECT_GT(policy.admitted(), 0);
  EXPECT_GT(policy.refused(), 0);
  EXPECT_FALSE(gate.is_filled());
  for (const auto& count : ops) {
    EXPECT_GT(count.load(), 0);
  }
}

}  // namespace
}  // namespace torchshare
