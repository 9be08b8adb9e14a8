#include "planner/workflow_prices.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace torchshare {
namespace {

using Stages = std::vector<WorkflowStage>;

/// Whether `a` is as good as `b` whatever the other stages have.
bool dominates(const StageOption& a, const StageOption& b) {
  return a.batch == b.batch && (!a.partner || a.partner == b.partner) && a.latency <= b.latency &&
         a.service <= b.service && a.cost <= b.cost;
}

/// What stages would choose for some prices, and how far that is beyond the limits.
struct Reply {
  double bound = 0;
  std::vector<std::size_t> path = {};  // the longest one
  double excess = 0;                   // of its length, as a fraction of the limit
  std::vector<double> uses = {};       // of partners, less 1
};

Reply reply(const Stages& stages, const WorkflowChoices& choices, const WorkflowPrices& prices, Seconds limit) {
  Reply found{.bound = -prices.sum, .uses = std::vector<double>(prices.partners.size(), -1.0)};
  std::vector<Seconds> latencies;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto best = std::min_element(
        choices[stage].begin(), choices[stage].end(),
        [&](const Choice& a, const Choice& b) { return prices.cost(stage, a) < prices.cost(stage, b); });
    found.bound += prices.cost(stage, *best);
    latencies.push_back(best->least);
    if (best->option->partner) {
      ++found.uses[*best->option->partner];
    }
  }
  found.path = longest_path(stages, latencies);
  for (const std::size_t stage : found.path) {
    found.excess += latencies[stage] / limit;
  }
  found.excess -= 1;
  return found;
}

/// The square of the length of a step of size 1. 0: no price would change.
double step_length(const Reply& reply, const WorkflowPrices& prices) {
  double sum = reply.excess > 0 || prices.latency > 0 ? reply.excess * reply.excess : 0;
  for (std::size_t i = 0; i < reply.uses.size(); ++i) {
    sum += reply.uses[i] > 0 || prices.partners[i] > 0 ? reply.uses[i] * reply.uses[i] : 0;
  }
  return sum;
}

/// What is beyond its limit gets dearer, what is within it cheaper.
void step(WorkflowPrices& prices, const Reply& reply, double size, Seconds limit) {
  const double change = std::max(size * reply.excess, -prices.latency);
  if (change > 0) {
    for (const std::size_t stage : reply.path) {
      prices.per_second[stage] += change / limit;
    }
  } else if (change < 0) {
    for (double& price : prices.per_second) {
      price *= 1 + change / prices.latency;
    }
  }
  prices.latency += change;
  for (std::size_t i = 0; i < reply.uses.size(); ++i) {
    prices.partners[i] = std::max(0.0, prices.partners[i] + size * reply.uses[i]);
  }
  prices.sum = std::accumulate(prices.partners.begin(), prices.partners.end(), prices.latency);
}

}  // namespace

Seconds least_latency(const StageOption& option, const std::vector<int>& bursts, double per_second) {
  Seconds least = std::numeric_limits<double>::infinity();
  for (const int burst : bursts) {
    least = std::min(least, latency_after(option, burst, per_second));
  }
  return least;
}

WorkflowChoices choices_of(const Stages& stages, double per_second) {
  WorkflowChoices found;
  for (const WorkflowStage& stage : stages) {
    std::vector<int> bursts;  // that it may get
    for (const std::size_t p : stage.after) {
      for (const Choice& choice : found[p]) {
        bursts.push_back(choice.option->batch);
      }
    }
    if (bursts.empty()) {
      bursts.push_back(1);
    }
    std::vector<Choice> kept;
    for (std::size_t i = 0; i < stage.options.size(); ++i) {
      const StageOption& option = stage.options[i];
      if (std::none_of(kept.begin(), kept.end(),
                       [&](const Choice& other) { return dominates(*other.option, option); })) {
        std::erase_if(kept, [&](const Choice& other) { return dominates(option, *other.option); });
        kept.push_back({i, &option, least_latency(option, bursts, per_second)});
      }
    }
    found.push_back(std::move(kept));
  }
  return found;
}

WorkflowPrices::WorkflowPrices(const Stages& stages) : per_second(stages.size()) {
  std::size_t count = 0;
  for (const WorkflowStage& stage : stages) {
    for (const StageOption& option : stage.options) {
      count = std::max(count, option.partner ? *option.partner + 1 : 0);
    }
  }
  partners.resize(count);
}

WorkflowPrices choose_prices(const Stages& stages, const WorkflowChoices& choices, Seconds limit) {
  constexpr int kSteps = 300;
  constexpr int kPatience = 10;  // steps without a higher bound
  WorkflowPrices prices(stages);
  WorkflowPrices best = prices;
  double highest = -std::numeric_limits<double>::infinity();
  double reach = 0;  // the cost of the quickest options, which is no bound but as high as one may be
  for (const std::vector<Choice>& each : choices) {
    reach += std::min_element(each.begin(), each.end(), is_quicker)->option->cost;
  }
  double size = 1;
  int without = 0;
  for (int i = 0; i < kSteps; ++i) {
    const Reply found = reply(stages, choices, prices, limit);
    if (found.bound > highest) {
      highest = found.bound;
      best = prices;
      without = 0;
    } else if (++without == kPatience) {
      size /= 2;
      without = 0;
    }
    const double length = step_length(found, prices);
    if (length == 0 || found.bound >= reach) {
      break;
    }
    step(prices, found, size * (reach - found.bound) / length, limit);
  }
  return best;
}

std::vector<std::size_t> longest_path(const Stages& stages, const std::vector<Seconds>& latencies) {
  std::vector<Seconds> ends;
  std::vector<std::size_t> before;  // on the longest path that ends with a stage; itself if it is the first
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    before.push_back(stage);
    for (const std::size_t p : stages[stage].after) {
      before[stage] = before[stage] == stage || ends[p] > ends[before[stage]] ? p : before[stage];
    }
    ends.push_back(latencies[stage] + (before[stage] == stage ? 0 : ends[before[stage]]));
  }
  std::vector<std::size_t> path{static_cast<std::size_t>(std::max_element(ends.begin(), ends.end()) - ends.begin())};
  while (before[path.back()] != path.back()) {
    path.push_back(before[path.back()]);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace torchshare
