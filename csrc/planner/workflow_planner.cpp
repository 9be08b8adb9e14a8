#include "planner/workflow_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "model/cycle_finder.h"
#include "planner/workflow_prices.h"
#include "planner/workflow_search.h"

namespace torchshare {
namespace {

void check(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal) {
  const auto is_positive = [](double value) { return value > 0 && value < std::numeric_limits<double>::infinity(); };
  if (stages.empty() || !is_positive(goal.limit) || !is_positive(goal.per_second)) {
    throw std::invalid_argument(
        fmt::format("a workflow must have stages, a positive limit and a positive rate, got {} stages, {} s and {}/s",
                    stages.size(), goal.limit, goal.per_second));
  }
  for (const WorkflowStage& stage : stages) {
    const auto is_alone = [](const StageOption& option) { return !option.partner; };
    if (std::none_of(stage.options.begin(), stage.options.end(), is_alone)) {
      throw std::invalid_argument(fmt::format("stage '{}': must have an option without a partner", stage.name));
    }
    for (const std::size_t p : stage.after) {
      if (p >= stages.size()) {
        throw std::invalid_argument(
            fmt::format("stage '{}': after must be one of {} stages, got {}", stage.name, stages.size(), p));
      }
    }
    for (const StageOption& each : stage.options) {
      if (each.batch < 1 || !is_positive(each.latency) || !is_positive(each.service) ||
          !(each.cost == 0 || is_positive(each.cost))) {
        throw std::invalid_argument(
            fmt::format("stage '{}': an option must have a batch and positive times, got batch {}, {} s, {} s and {} s",
                        stage.name, each.batch, each.latency, each.service, each.cost));
      }
    }
  }
}

void check_order(const std::vector<WorkflowStage>& stages) {
  CycleFinder<std::size_t> finder;
  for (std::size_t root = 0; root < stages.size(); ++root) {
    std::vector<std::string> names;
    for (const std::size_t i : finder.find(root, [&](std::size_t stage) { return stages[stage].after; })) {
      names.push_back(stages[i].name);
    }
    if (!names.empty()) {
      throw std::invalid_argument(fmt::format("stage '{}': after must not lead back to it, got a circle among {}",
                                              names[0], fmt::join(names, ", ")));
    }
  }
}

/// Indices of the stages, each behind its predecessors.
std::vector<std::size_t> topological_order(const std::vector<WorkflowStage>& stages) {
  std::vector<std::size_t> order;
  std::vector<bool> is_placed(stages.size());
  while (order.size() < stages.size()) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& after = stages[i].after;
      if (!is_placed[i] && std::all_of(after.begin(), after.end(), [&](std::size_t p) { return is_placed[p]; })) {
        is_placed[i] = true;
        order.push_back(i);
      }
    }
  }
  return order;
}

std::vector<WorkflowStage> sorted(const std::vector<WorkflowStage>& stages, const std::vector<std::size_t>& order) {
  std::vector<std::size_t> position(order.size());
  std::vector<WorkflowStage> found;
  for (std::size_t i = 0; i < order.size(); ++i) {
    position[order[i]] = i;
    found.push_back(stages[order[i]]);
    for (std::size_t& p : found.back().after) {
      p = position[p];
    }
  }
  return found;
}

/// A plan with the waits, the latencies and the longest path of these options.
WorkflowPlan timed(const std::vector<WorkflowStage>& stages, const std::vector<std::size_t>& options,
                   double per_second) {
  WorkflowPlan plan;
  std::vector<Seconds> latencies;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    int burst = 1;
    for (const std::size_t p : stages[i].after) {
      burst = std::max(burst, stages[p].options[options[p]].batch);
    }
    const StageOption& option = stages[i].options[options[i]];
    latencies.push_back(latency_after(option, burst, per_second));
    plan.stages.push_back(
        {.option = options[i], .wait = wait_for_others(option, burst, per_second), .latency = latencies[i]});
    plan.cost += option.cost;
  }
  plan.critical = longest_path(stages, latencies);
  for (const std::size_t i : plan.critical) {
    plan.latency += latencies[i];
  }
  return plan;
}

/// Divides the limit L. With P, the longest path that ends with a stage, and Q, the longest one behind it, a stage ends
/// by D = L P / (P + Q). Where v follows u, P(v) >= P(u) + l(v) and Q(u) >= l(v) + Q(v). D grows with P and falls with
/// Q, so D(u) <= L (P(v) - l(v)) / (P(v) + Q(v)) = D(v) - l(v) L / (P(v) + Q(v)) <= D(v) - l(v), as no path is longer
/// than L: each stage has its latency at least. D = L where nothing follows.
void divide(WorkflowPlan& plan, const std::vector<WorkflowStage>& stages, Seconds limit) {
  std::vector<Seconds> before(stages.size());
  std::vector<Seconds> behind(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    for (const std::size_t p : stages[i].after) {
      before[i] = std::max(before[i], before[p]);
    }
    before[i] += plan.stages[i].latency;
  }
  for (std::size_t i = stages.size(); i-- > 0;) {
    for (const std::size_t p : stages[i].after) {
      behind[p] = std::max(behind[p], plan.stages[i].latency + behind[i]);
    }
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    Seconds begin = 0;
    for (const std::size_t p : stages[i].after) {
      begin = std::max(begin, plan.stages[p].ends_by);
    }
    plan.stages[i].ends_by = limit * before[i] / (before[i] + behind[i]);
    plan.stages[i].budget = plan.stages[i].ends_by - begin;
  }
}

/// The options with the least latency. Throws std::invalid_argument if it is beyond the limit.
std::vector<std::size_t> quickest(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal) {
  WorkflowSearch search(stages, {.per_second = goal.per_second}, WorkflowSearch::Least::kLatency);
  std::vector<std::size_t> options = search.best();
  const WorkflowPlan least = timed(stages, options, goal.per_second);
  if (least.latency <= goal.limit) {
    return options;
  }
  std::vector<std::string> path;
  for (const std::size_t i : least.critical) {
    path.push_back(fmt::format("'{}' with {:.4g} ms", stages[i].name, 1e3 * least.stages[i].latency));
  }
  throw std::invalid_argument(fmt::format(
      "the limit must be at least {:.4g} ms, got {:.4g} ms; so long is the longest path with the quickest options: {}",
      1e3 * least.latency, 1e3 * goal.limit, fmt::join(path, ", ")));
}

}  // namespace

WorkflowPlan plan_workflow(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal) {
  check(stages, goal);
  check_order(stages);
  const std::vector<std::size_t> order = topological_order(stages);
  const std::vector<WorkflowStage> in_order = sorted(stages, order);
  WorkflowSearch search(in_order, goal, WorkflowSearch::Least::kCost);
  std::vector<std::size_t> options = search.best();
  if (options.empty()) {
    options = quickest(in_order, goal);
  }
  WorkflowPlan plan = timed(in_order, options, goal.per_second);
  divide(plan, in_order, goal.limit);
  plan.nodes = search.nodes();
  plan.exact = search.is_exact();
  std::vector<PlannedStage> by_index(stages.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    by_index[order[i]] = plan.stages[i];
  }
  plan.stages = std::move(by_index);
  for (std::size_t& i : plan.critical) {
    i = order[i];
  }
  return plan;
}

}  // namespace torchshare
