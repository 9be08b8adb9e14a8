#include "planner/workflow_planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace torchshare {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

StageOption option(int batch, Seconds time, Seconds cost, std::optional<std::size_t> partner = {}) {
  return {.batch = batch, .partner = partner, .latency = time, .service = time, .cost = cost};
}

std::vector<std::size_t> chosen(const WorkflowPlan& plan) {
  std::vector<std::size_t> found;
  for (const PlannedStage& stage : plan.stages) {
    found.push_back(stage.option);
  }
  return found;
}

std::vector<Seconds> ends(const WorkflowPlan& plan) {
  std::vector<Seconds> found;
  for (const PlannedStage& stage : plan.stages) {
    found.push_back(stage.ends_by);
  }
  return found;
}

/// Batches of 1 or 4, at 10 requests per second: the fourth comes 300 ms after the first.
std::vector<WorkflowStage> chain() {
  const std::vector<StageOption> options{option(1, 0.010, 0.010), option(4, 0.020, 0.005)};
  return {{"a", {}, options}, {"b", {0}, options}};
}

TEST(WorkflowPlanner, WaitsOnceForABatchThatGoesThroughAChain) {
  const WorkflowPlan plan = plan_workflow(chain(), {.limit = 0.5, .per_second = 10});
  EXPECT_THAT(chosen(plan), ElementsAre(1, 1));
  EXPECT_NEAR(plan.latency, 0.320 + 2 * 0.020, 1e-12);  // b may answer the first of the four alone
  EXPECT_NEAR(plan.cost, 0.010, 1e-12);
  EXPECT_THAT(ends(plan), ElementsAre(DoubleNear(0.5 * 0.320 / 0.360, 1e-12), DoubleNear(0.5, 1e-12)));
  EXPECT_NEAR(plan.stages[0].wait, 0.3, 1e-12);
  EXPECT_EQ(plan.stages[1].wait, 0);
  EXPECT_NEAR(plan.stages[1].budget, 0.5 * 0.040 / 0.360, 1e-12);
  EXPECT_THAT(plan.critical, ElementsAre(0, 1));
  EXPECT_TRUE(plan.exact);
}

TEST(WorkflowPlanner, AnswersABurstInSeveralBatches) {
  // In the other order, b would answer four requests one after the other: 0.320 + 0.040.
  const WorkflowPlan late = plan_workflow(chain(), {.limit = 0.335, .per_second = 10});
  EXPECT_THAT(chosen(late), ElementsAre(0, 1));
  EXPECT_NEAR(late.latency, 0.010 + 0.320, 1e-12);
  std::vector<WorkflowStage> stages = chain();
  stages[1].options.pop_back();
  const WorkflowPlan burst = plan_workflow(stages, {.limit = 0.361, .per_second = 10});
  EXPECT_THAT(chosen(burst), ElementsAre(1, 0));
  EXPECT_NEAR(burst.stages[1].latency, 0.040, 1e-12);
  EXPECT_THAT(chosen(plan_workflow(stages, {.limit = 0.359, .per_second = 10})), ElementsAre(0, 0));
  // An option that is quicker for one request, and slower for four.
  stages[1].options = {{.batch = 1, .latency = 0.009, .service = 0.090, .cost = 0.010}, option(1, 0.010, 0.010)};
  EXPECT_THAT(chosen(plan_workflow(stages, {.limit = 0.361, .per_second = 10})), ElementsAre(1, 1));
}

/// The stages are not in order: d, b, c, a. Only one of b and c can have the partner.
std::vector<WorkflowStage> diamond() {
  return {{"d", {1, 2}, {option(1, 0.010, 0.010)}},
          {"b", {3}, {option(1, 0.020, 0.020), option(1, 0.040, 0.008, 0)}},
          {"c", {3}, {option(1, 0.010, 0.010), option(1, 0.020, 0.004, 0)}},
          {"a", {}, {option(1, 0.010, 0.010)}}};
}

TEST(WorkflowPlanner, GivesAPartnerToTheStageThatGainsMostWithinTheLimit) {
  const WorkflowPlan loose = plan_workflow(diamond(), {.limit = 0.060, .per_second = 10});
  EXPECT_THAT(chosen(loose), ElementsAre(0, 1, 0, 0));
  EXPECT_NEAR(loose.cost, 0.038, 1e-12);
  EXPECT_THAT(loose.critical, ElementsAre(3, 1, 0));
  const WorkflowPlan tight = plan_workflow(diamond(), {.limit = 0.050, .per_second = 10});
  EXPECT_THAT(chosen(tight), ElementsAre(0, 0, 1, 0));
  EXPECT_NEAR(tight.cost, 0.044, 1e-12);
  EXPECT_THAT(ends(tight), ElementsAre(DoubleNear(0.050, 1e-12), DoubleNear(0.0375, 1e-12), DoubleNear(0.0375, 1e-12),
                                       DoubleNear(0.0125, 1e-12)));
}

struct Workflow {
  std::vector<WorkflowStage> stages;
  double per_second;
};

Workflow random_workflow(std::mt19937& random, int stages, int most_options) {
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  const auto integer = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  Workflow made{{}, uniform(5, 100)};
  for (int i = 0; i < stages; ++i) {
    WorkflowStage stage{std::string(1, static_cast<char>('a' + i)), {}, {option(1, uniform(0.005, 0.05), 0.1)}};
    for (int p = 0; p < i; ++p) {
      if (uniform(0, 1) < 0.5) {
        stage.after.push_back(static_cast<std::size_t>(p));
      }
    }
    for (int k = integer(0, most_options - 1); k > 0; --k) {
      StageOption each = option(integer(1, 8), uniform(0.005, 0.1), uniform(0.01, 0.1));
      each.latency = each.service * uniform(1, 2);
      each.partner = integer(0, 3) == 0 ? std::nullopt : std::optional<std::size_t>(integer(0, 2));
      stage.options.push_back(each);
    }
    made.stages.push_back(std::move(stage));
  }
  return made;
}

/// Tries all options of all stages, whose order is that of a random workflow. Independent of the planner's code.
class Reference {
 public:
  explicit Reference(const Workflow& workflow) : stages_(workflow.stages), per_second_(workflow.per_second) {}

  /// Infinite if no plan is within the limit.
  double least_cost(Seconds limit) {
    limit_ = limit;
    least_cost_ = least_latency_ = std::numeric_limits<double>::infinity();
    std::vector<const StageOption*> none;
    try_all(none);
    return least_cost_;
  }
  Seconds least_latency() const { return least_latency_; }

  Seconds latency(const std::vector<const StageOption*>& options, std::vector<Seconds>& latencies) const {
    std::vector<Seconds> ended;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      double begin = 0;
      double burst = 1;
      for (const std::size_t p : stages_[i].after) {
        begin = std::max(begin, ended[p]);
        burst = std::max(burst, static_cast<double>(options[p]->batch));
      }
      const double batch = options[i]->batch;
      const double further = batch <= burst ? std::ceil((burst - 1) / batch) : 0;
      latencies.push_back((std::ceil(batch / burst) - 1) * burst / per_second_ + options[i]->latency +
                          further * options[i]->service);
      ended.push_back(begin + latencies.back());
    }
    return *std::max_element(ended.begin(), ended.end());
  }

 private:
  void try_all(std::vector<const StageOption*>& options) {
    if (options.size() < stages_.size()) {
      for (const StageOption& each : stages_[options.size()].options) {
        const auto takes_same = [&](const StageOption* other) {
          return each.partner && other->partner == each.partner;
        };
        if (std::none_of(options.begin(), options.end(), takes_same)) {
          options.push_back(&each);
          try_all(options);
          options.pop_back();
        }
      }
      return;
    }
    double cost = 0;
    for (const StageOption* each : options) {
      cost += each->cost;
    }
    std::vector<Seconds> latencies;
    const Seconds took = latency(options, latencies);
    least_latency_ = std::min(least_latency_, took);
    least_cost_ = took <= limit_ ? std::min(least_cost_, cost) : least_cost_;
  }

  std::vector<WorkflowStage> stages_;
  double per_second_;
  Seconds limit_ = 0;
  double least_cost_ = 0;
  Seconds least_latency_ = 0;
};

TEST(WorkflowPlanner, IsAsCheapAsTheBestOfAllPlans) {
  std::mt19937 random(7);
  int infeasible = 0;
  for (int round = 0; round < 500; ++round) {
    const Workflow made = random_workflow(random, 2 + round % 5, 6);
    Reference reference(made);
    reference.least_cost(0);
    const Seconds limit = reference.least_latency() * std::uniform_real_distribution(0.9, 3.0)(random);
    const double least = reference.least_cost(limit);
    if (least == std::numeric_limits<double>::infinity()) {
      EXPECT_THAT([&] { plan_workflow(made.stages, {limit, made.per_second}); },
                  ThrowsMessage<std::invalid_argument>(
                      HasSubstr(fmt::format("must be at least {:.4g} ms, got", 1e3 * reference.least_latency()))))
          << "round " << round;
      ++infeasible;
      continue;
    }
    const WorkflowPlan plan = plan_workflow(made.stages, {limit, made.per_second});
    EXPECT_TRUE(plan.exact);
    EXPECT_NEAR(plan.cost, least, 1e-9) << "round " << round;
    EXPECT_LE(plan.latency, limit * (1 + 1e-9));
  }
  EXPECT_GT(infeasible, 10);
  EXPECT_LT(infeasible, 100);
}

TEST(WorkflowPlanner, GivesEachStageAtLeastItsLatency) {
  std::mt19937 random(8);
  for (int round = 0; round < 300; ++round) {
    const Workflow made = random_workflow(random, 2 + round % 7, 4);
    const WorkflowPlan plan = plan_workflow(made.stages, {1.0, made.per_second});
    std::vector<const StageOption*> options;
    for (std::size_t i = 0; i < made.stages.size(); ++i) {
      options.push_back(&made.stages[i].options[plan.stages[i].option]);
    }
    std::vector<Seconds> latencies;
    EXPECT_NEAR(Reference(made).latency(options, latencies), plan.latency, 1e-9);
    std::vector<bool> is_followed(made.stages.size());
    for (std::size_t i = 0; i < made.stages.size(); ++i) {
      Seconds begin = 0;
      for (const std::size_t p : made.stages[i].after) {
        begin = std::max(begin, plan.stages[p].ends_by);
        is_followed[p] = true;
      }
      EXPECT_NEAR(plan.stages[i].budget, plan.stages[i].ends_by - begin, 1e-12);
      EXPECT_GE(plan.stages[i].budget, latencies[i] * (1 - 1e-9)) << "round " << round;
    }
    for (std::size_t i = 0; i < made.stages.size(); ++i) {
      EXPECT_EQ(plan.stages[i].ends_by == 1.0, !is_followed[i]);
    }
  }
}

TEST(WorkflowPlanner, NamesTheLeastLatencyAndItsPath) {
  EXPECT_THAT([] { plan_workflow(diamond(), {.limit = 0.030, .per_second = 10}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "the limit must be at least 40 ms, got 30 ms; so long is the longest path with the quickest options: "
                  "'a' with 10 ms, 'b' with 20 ms, 'd' with 10 ms")));
}

TEST(WorkflowPlanner, TheLeastLatencyIsThatOfTheLongestPath) {
  // Batches of two from a are quicker for a and c. For b, they are only with batches of four from e, which wait
  // longest.
  const std::vector<WorkflowStage> stages{
      {"a", {}, {option(1, 0.020, 0), option(2, 0.005, 0)}},
      {"e", {}, {option(1, 0.001, 0), option(4, 0.001, 0)}},
      {"b", {0, 1}, {option(1, 0.030, 0), {.batch = 4, .latency = 0.030, .service = 0.001, .cost = 0}}},
      {"c", {0}, {option(2, 0.010, 0)}}};
  EXPECT_THAT([&] { plan_workflow(stages, {.limit = 0.035, .per_second = 100}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("the limit must be at least 50 ms")));
}

TEST(WorkflowPlanner, RefusesWhatIsNoWorkflow) {
  const auto refuses = [](std::vector<WorkflowStage> stages, Seconds limit, const std::string& message) {
    EXPECT_THAT([&] { plan_workflow(stages, {.limit = limit, .per_second = 10}); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses({}, 1, "a workflow must have stages");
  refuses(chain(), 0, "a positive limit");
  std::vector<WorkflowStage> stages = chain();
  stages[0].after = {1};
  refuses(stages, 1, "stage 'a': after must not lead back to it, got a circle among a, b");
  std::vector<WorkflowStage> behind = chain();
  behind[0].after = {1};
  behind.insert(behind.begin(), {"behind", {1}, behind[0].options});  // is on no circle itself
  behind[1].after = {2};
  behind[2].after = {1};
  refuses(behind, 1, "stage 'a': after must not lead back to it, got a circle among a, b");
  stages[0].after = {2};
  refuses(stages, 1, "stage 'a': after must be one of 2 stages, got 2");
  stages = chain();
  stages[1].options[1].latency = 0;
  refuses(stages, 1, "stage 'b': an option must have a batch and positive times");
  stages[1].options = {option(1, 1, 1, 0)};
  refuses(stages, 1, "stage 'b': must have an option without a partner");
}

TEST(WorkflowPlanner, KeepsTheLimitWhereTheSearchIsCutShort) {
  std::mt19937 random(9);
  for (const std::uint64_t max_nodes : {1, 20, 100}) {
    const Workflow made = random_workflow(random, 8, 20);
    const WorkflowPlan best = plan_workflow(made.stages, {0.5, made.per_second});
    const WorkflowPlan cut = plan_workflow(made.stages, {0.5, made.per_second, max_nodes});
    EXPECT_TRUE(best.exact);
    EXPECT_FALSE(cut.exact);
    EXPECT_LE(cut.latency, 0.5);
    EXPECT_GE(cut.cost, best.cost - 1e-12);
  }
}

}  // namespace
}  // namespace torchshare
