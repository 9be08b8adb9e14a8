#pragma once

#include <vector>

#include "planner/workflow_planner.h"

namespace torchshare {

/// Note [Bursts]
/// A stage gets its requests as its predecessors answer them: p at once, the largest of their batches, every p / rate
/// seconds; p = 1 where requests arrive. A batch of b > p is full after ceil(b / p) - 1 further bursts. If b <= p, no
/// request waits for others. Then the first one of a burst may be answered alone, before the rest of it has come, so
/// the last one is answered after ceil((p - 1) / b) further batches.
inline Seconds wait_for_others(const StageOption& option, int burst, double per_second) {
  return (option.batch - 1) / burst * burst / per_second;
}
inline Seconds latency_after(const StageOption& option, int burst, double per_second) {
  const int further = option.batch > burst ? 0 : (burst - 1 + option.batch - 1) / option.batch;
  return option.latency + wait_for_others(option, burst, per_second) + further * option.service;
}

/// The least latency of those after each of the bursts.
Seconds least_latency(const StageOption& option, const std::vector<int>& bursts, double per_second);

/// An option in the search.
struct Choice {
  std::size_t index;
  const StageOption* option;
  Seconds least;      ///< latency, after the options of the predecessors that suit it best
  double priced = 0;  ///< see WorkflowPrices
  double rest = 0;    ///< at least, priced cost of the stages behind
  Seconds tail = 0;   ///< at least, the longest path behind
};
inline bool is_quicker(const Choice& a, const Choice& b) {
  return a.least < b.least;
}
using WorkflowChoices = std::vector<std::vector<Choice>>;

/// The options of each stage but those that others are better than, whatever the other stages have. Each stage is
/// behind its predecessors.
WorkflowChoices choices_of(const std::vector<WorkflowStage>& stages, double per_second);

/// Multipliers of Lagrange for the limits that tie the stages together: no path is longer than `limit`, no partner is
/// beside two stages. For any prices >= 0, the least priced cost of all stages, less `sum`, is at most the cost of any
/// plan within the limits: each path pays at most `latency`, since the prices of its stages are a flow, and each
/// partner's price is paid at most once.
struct WorkflowPrices {
  WorkflowPrices() = default;
  explicit WorkflowPrices(const std::vector<WorkflowStage>& stages);

  /// With the price of its latency and of its partner.
  double cost(std::size_t stage, const Choice& choice) const {
    const StageOption& option = *choice.option;
    return option.cost + per_second[stage] * choice.least + (option.partner ? partners[*option.partner] : 0);
  }

  double latency = 0;                   ///< of the whole limit
  std::vector<double> per_second = {};  ///< by stage
  std::vector<double> partners = {};
  double sum = 0;  ///< of `latency` and `partners`
};

/// Prices with a high bound, by subgradient steps.
WorkflowPrices choose_prices(const std::vector<WorkflowStage>& stages, const WorkflowChoices& choices, Seconds limit);

/// A longest path through stages with these latencies, in order.
std::vector<std::size_t> longest_path(const std::vector<WorkflowStage>& stages, const std::vector<Seconds>& latencies);

}  // namespace torchshare
