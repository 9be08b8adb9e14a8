#include "policy/admission.h"

#include <gtest/gtest.h>

namespace torchshare {
namespace {

using namespace std::chrono_literals;

constexpr Verdict kAdmitted{.admit = true, .retry_after = {}};

/// Keeps what it is asked.
class Recorder final : public GatePolicy {
 public:
  explicit Recorder(bool forecasts) : forecasts_(forecasts) {}
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  bool forecasts() const override { return forecasts_; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override {
    requester_ = requester;
    competitors_.assign(competitors.begin(), competitors.end());
    return {.admit = false, .retry_after = 1ms};
  }

  mutable std::optional<Requester> requester_;
  mutable std::vector<Competitor> competitors_;

 private:
  const bool forecasts_;
};

/// What the policy sees of a primary in that state, at 100 ms.
Competitor seen(const Recorder& policy, const JobSnapshot& snapshot, AdmissionRecord record = {}) {
  Admission admission(policy, Priority::kSecondary, 100ms);
  admission.add(Priority::kPrimary, record, snapshot);
  EXPECT_FALSE(admission.decide({}, {}, 0ns).admit);
  return policy.competitors_.at(0);
}

constexpr GapForecast kGap{.mean = 5ms, .spread = 1ms};
const AdmissionRecord kLastSeenAt90{.quiet = {.activity = 4, .since = 90ms}, .expected_end = 130ms};

TEST(Admission, AJobIsQuietSinceTheGapBeganIfThatIsKnownElseSinceItWasSeenToMove) {
  const Recorder policy(true);
  const JobSnapshot in_gap{.activity = 4, .gap = kGap, .left_at = 97ms};
  EXPECT_EQ(seen(policy, in_gap, kLastSeenAt90).quiet, 3ms);
  EXPECT_EQ(seen(policy, in_gap, kLastSeenAt90).gap.mean, kGap.mean);
  EXPECT_EQ(seen(policy, in_gap, kLastSeenAt90).gap.spread, kGap.spread);
  const JobSnapshot on_device{.activity = 4, .gap = kGap};
  EXPECT_EQ(seen(policy, on_device, kLastSeenAt90).quiet, 10ms);
  const JobSnapshot unknown{.activity = 4, .left_at = 97ms};  // of an earlier gap
  EXPECT_EQ(seen(policy, unknown, kLastSeenAt90).quiet, 10ms);
  const JobSnapshot moved{.activity = 6, .left_at = 97ms};
  EXPECT_EQ(seen(policy, moved, kLastSeenAt90).quiet, 0ns);
}

TEST(Admission, AnOpInsideHasTheRestOfItsExpectedTime) {
  const Recorder policy(true);
  const JobSnapshot inside{.inside = true, .gap = kGap, .op = 40ms, .kind = OpKind::kMemory};
  const Competitor competitor = seen(policy, inside, kLastSeenAt90);
  EXPECT_TRUE(competitor.inside);
  EXPECT_EQ(competitor.left, 30ms);
  EXPECT_EQ(competitor.op, 40ms);
  EXPECT_EQ(competitor.kind, OpKind::kMemory);
  EXPECT_EQ(competitor.gap.mean, 0ns);
  EXPECT_EQ(seen(policy, inside, {.expected_end = 80ms}).left, 0ns);
  // An op that has ended early: ops that were admitted beside it may go on until then, see EdfPolicy.
  EXPECT_EQ(seen(policy, {.inside = false}, kLastSeenAt90).left, 30ms);
  EXPECT_FALSE(seen(policy, inside).waits);
  EXPECT_TRUE(seen(policy, {}, {.waits = true}).waits);
}

TEST(Admission, TellsAPolicyWithoutForecastsOnlyWhatIsSeen) {
  const Recorder policy(false);
  const JobSnapshot snapshot{.activity = 4, .idle = true, .gap = kGap, .left_at = 97ms, .op = 1ms};
  const Competitor competitor = seen(policy, snapshot, kLastSeenAt90);
  EXPECT_TRUE(competitor.idle);
  EXPECT_FALSE(competitor.inside);
  EXPECT_EQ(competitor.quiet, 10ms);
  EXPECT_EQ(competitor.gap.mean, 0ns);
  EXPECT_EQ(competitor.op, std::nullopt);
}

TEST(Admission, AsksOnlyIfAJobConcernsTheRequester) {
  const Recorder policy(true);
  Admission admission(policy, Priority::kSecondary, 0ns);
  EXPECT_TRUE(admission.regards(Priority::kPrimary));
  EXPECT_TRUE(admission.regards(Priority::kSecondary));
  EXPECT_FALSE(admission.regards(Priority::kLowest));
  AdmissionRecord record;
  admission.add(Priority::kSecondary, record, {});
  EXPECT_TRUE(admission.decide({}, {}, 0ns).admit);
  EXPECT_EQ(policy.requester_, std::nullopt);
  admission.add(Priority::kPrimary, record, {});
  admission.add(Priority::kSecondary, record, {});
  EXPECT_FALSE(admission.decide({}, {.op = 2ms, .kind = OpKind::kCompute, .ahead = 3ms}, 4ms).admit);
  EXPECT_EQ(policy.competitors_.size(), 3U);
  EXPECT_EQ(policy.requester_->priority, Priority::kSecondary);
  EXPECT_EQ(policy.requester_->op, 2ms);
  EXPECT_EQ(policy.requester_->kind, OpKind::kCompute);
  EXPECT_EQ(policy.requester_->ahead, 3ms);
  EXPECT_EQ(policy.requester_->waited, 4ms);
}

TEST(Admission, AnAdmittedJobWaitsNoMoreAndEndsWhenExpected) {
  AdmissionRecord record{.waits = true};
  record.admit(10ms, kAdmitted, 5ms);
  EXPECT_FALSE(record.waits);
  EXPECT_EQ(record.expected_end, 15ms);
  record.admit(20ms, kAdmitted, std::nullopt);
  EXPECT_EQ(record.expected_end, 20ms);
}

}  // namespace
}  // namespace torchshare
