#include "model/op_chain.h"

#include <gtest/gtest.h>

#include <random>

#include "model/log_histogram.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

/// Runs through a step and returns the contexts of its ops.
std::vector<std::uint64_t> run(OpChain& chain, const std::vector<std::uint64_t>& step) {
  std::vector<std::uint64_t> contexts;
  for (const std::uint64_t op : step) {
    OpProfile& profile = chain.advance(op).profile;
    EXPECT_EQ(profile.signature, op);
    profile.duration.add(1);
    contexts.push_back(profile.context);
  }
  return contexts;
}

std::vector<std::uint64_t> step_of(std::size_t ops, std::uint64_t first = 1) {
  std::vector<std::uint64_t> step(ops);
  for (std::size_t i = 0; i < ops; ++i) {
    step[i] = first + i % 40;  // the same op at several places
  }
  return step;
}

TEST(OpChain, FindsTheSamePlacesInEveryStepAndItsLength) {
  OpChain chain;
  const auto step = step_of(100);
  run(chain, step);
  EXPECT_EQ(run(chain, step).size(), 100U);
  const auto third = run(chain, step);
  EXPECT_EQ(run(chain, step), third);
  EXPECT_EQ(chain.ops_per_step(), 100U);
  const auto places = chain.size();
  run(chain, step);
  EXPECT_EQ(chain.size(), places);
}

TEST(OpChain, DistinguishesPlacesOfOneOpByTheOpsBefore) {
  OpChain chain;
  const std::vector<std::uint64_t> step{1, 2, 7, 3, 7, 4, 7};
  run(chain, step);
  for (int i = 0; i < 6; ++i) {
    run(chain, step);
  }
  const auto contexts = run(chain, step);
  EXPECT_NE(contexts[2], contexts[4]);
  EXPECT_NE(contexts[4], contexts[6]);
}

TEST(OpChain, NoticesChangedShapesAndComesBackToKnownPlacesAfterwards) {
  OpChain chain;
  const auto step = step_of(100);
  run(chain, step);
  const auto known = [&] {
    run(chain, step);
    return run(chain, step);
  }();
  auto changed = step;
  changed[50] = 1000;  // another shape
  run(chain, changed);
  const auto before = chain.size();
  const auto again = run(chain, step);
  // The change is still among the last ops for a while.
  EXPECT_EQ(std::vector(again.begin() + OpChain::kContext, again.end()),
            std::vector(known.begin() + OpChain::kContext, known.end()));
  EXPECT_EQ(chain.size(), before);
}

TEST(OpChain, RemembersABranchThatIsTakenNowAndThen) {
  OpChain chain;
  const auto train = step_of(60);
  const auto evaluate = step_of(30, 500);
  const auto both = [&] {
    for (int i = 0; i < 5; ++i) {
      run(chain, train);
    }
    run(chain, evaluate);
  };
  both();
  both();
  const auto places = chain.size();
  both();
  EXPECT_EQ(chain.size(), places);
}

TEST(OpChain, KnowsBatchesOfEverySizeOnceItHasSeenEach) {
  const auto places_after = [](bool restart) {
    OpChain chain;
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
      if (restart) {
        chain.restart();
      }
      run(chain, step_of(15, 100 * (1 + random() % 8)));
    }
    return chain.size();
  };
  EXPECT_EQ(places_after(true), 8U * 15);
  EXPECT_GT(places_after(false), 1000U);
}

TEST(OpChain, KnowsWhatWasMeasuredBefore) {
  OpChain first;
  const auto step = step_of(50);
  for (int i = 0; i < 10; ++i) {
    run(first, step);
  }
  OpChain second(first.profiles());
  run(second, step);  // one step to find the places
  const auto places = second.size();
  for (const std::uint64_t op : step) {
    EXPECT_TRUE(second.advance(op).profile.duration.known());
  }
  EXPECT_EQ(second.size(), places);
}

TEST(OpChain, DropsPlacesIfNothingRepeatsAndStaysCorrect) {
  OpChain chain;
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < 3 * OpChain::kMaxPlaces; ++i) {
    const auto op = random();
    EXPECT_EQ(chain.advance(op).profile.signature, op);
    EXPECT_LE(chain.size(), OpChain::kMaxPlaces);
  }
  EXPECT_EQ(chain.ops_per_step(), 0U);
  const auto step = step_of(50);
  run(chain, step);
  run(chain, step);
  run(chain, step);
  EXPECT_EQ(chain.ops_per_step(), 50U);
}

TEST(OpTime, HasMeanAndSpreadOfEqualValues) {
  OpTime time;
  for (int i = 0; i < 4; ++i) {
    time.add(100);
  }
  EXPECT_FALSE(time.known());
  time.add(100);
  EXPECT_TRUE(time.known());
  EXPECT_DOUBLE_EQ(time.mean, 100);
  EXPECT_DOUBLE_EQ(time.spread, 0);
}

TEST(OpTime, FindsTheMeanAndTheMeanAbsoluteDeviation) {
  OpTime time;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, 200);  // mean 100, mean absolute deviation 50
  double mean = 0;
  double spread = 0;
  for (int i = 0; i < 20'000; ++i) {
    time.add(uniform(random));
    mean += time.mean / 20'000;
    spread += time.spread / 20'000;
  }
  EXPECT_NEAR(mean, 100, 3);
  EXPECT_NEAR(spread, 50, 4);
}

TEST(OpTime, ClampsOneOutlierButFollowsATenfoldChange) {
  OpTime time;
  for (int i = 0; i < 100; ++i) {
    time.add(100 + i % 2);
  }
  time.add(10'000'000);
  EXPECT_LT(time.mean, 105);
  for (int i = 0; i < 60; ++i) {
    time.add(1000);
  }
  EXPECT_NEAR(time.mean, 1000, 100);
  for (int i = 0; i < 60; ++i) {
    time.add(10);
  }
  EXPECT_NEAR(time.mean, 10, 30);
}

TEST(LogHistogram, QuantilesAreUpperEdgesWithinAFifth) {
  LogHistogram<> histogram;
  for (std::uint64_t i = 1; i < LogHistogram<>::kEnough; ++i) {
    histogram.add(1us);
  }
  EXPECT_FALSE(histogram.quantile(0.95));
  for (int i = 1; i <= 1000; ++i) {
    histogram.add(i * 1us);
  }
  const auto p95 = histogram.quantile(0.95);
  ASSERT_TRUE(p95);
  EXPECT_GE(*p95, 945us);
  EXPECT_LE(*p95, 1150us);
  histogram.add(0ns);
  histogram.add(std::chrono::hours(1000));
}

TEST(OpKind, IsGivenByTheOpsName) {
  for (const char* text : {"aten::mm(f32[4, 4], f32[4, 4])", "aten::addmm(", "aten::convolution_backward(f32)", "mm",
                           "aten::_scaled_dot_product_flash_attention(", "aten::lstm.input(", "aten::mm.out("}) {
    EXPECT_EQ(op_kind(text), OpKind::kCompute) << text;
  }
  for (const char* text : {"aten::add_.Tensor(f32[4])", "aten::_standard_gamma(", "aten::native_batch_norm(",
                           "aten::hamming_window(", "my::comm(mm)"}) {
    EXPECT_EQ(op_kind(text), OpKind::kMemory) << text;
  }
  EXPECT_EQ(op_kind(""), OpKind::kUnknown);
}

}  // namespace
}  // namespace torchshare
