#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "planner/workflow_planner.h"
#include "planner/workflow_prices.h"

namespace torchshare {

/// A* over the options of stages, each behind its predecessors; see plan_workflow.
class WorkflowSearch {
 public:
  enum class Least { kCost, kLatency };

  WorkflowSearch(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal, Least least);

  /// The option of each stage; empty if none were found that are within the limit.
  std::vector<std::size_t> best();
  std::uint64_t nodes() const { return nodes_.size(); }
  /// Whether nothing is left to search.
  bool is_exact() const { return open_.empty(); }

 private:
  /// A choice for the first stages.
  struct Node {
    double bound = 0;   // on what is to be least, of all stages
    double cost = 0;    // of the first stages
    double priced = 0;  // with their prices
    std::size_t parent = 0;
    std::size_t depth = 0;   // number of those stages
    std::size_t choice = 0;  // of the last one
  };
  struct Open {
    double bound;
    std::size_t node;

    bool operator<(const Open& other) const { return bound > other.bound; }  // the top of a heap is the least
  };
  struct Arrival {
    Seconds at = 0;
    int burst = 1;
  };
  /// What is left to the stages behind, and its cost.
  struct State {
    double cost;
    std::vector<Seconds> ends;  // of those whose ends others wait for
  };

  void set_bounds();
  void set_rest(std::size_t stage);
  std::pair<double, Seconds> least_behind(std::size_t stage, int batch, std::size_t next) const;
  bool follows(std::size_t stage, std::size_t other) const;
  void expand(std::size_t node);
  void restore(std::size_t node);
  bool is_dominated(const Node& node);
  void keep(double value, std::size_t choice);
  Arrival arrival(std::size_t stage) const;
  bool has_taken(std::size_t stages, const StageOption& option) const;
  /// Nodes from this bound on are no better than the best plan.
  double worth() const { return best_value_ * (1 - kRounding); }

  static constexpr double kRounding = 1e-12;  // relative
  static constexpr int kDiveEvery = 4;        // nodes
  const std::vector<WorkflowStage>& stages_;
  const WorkflowGoal goal_;
  const bool for_cost_;
  WorkflowChoices choices_;
  WorkflowPrices prices_;
  std::vector<std::size_t> last_successor_;  // by stage; 0 without one
  std::vector<std::size_t> last_partner_;    // by partner: the last stage that may have it
  std::vector<double> rest_cost_;            // by stage: the least of it and those behind it
  // The state of the search.
  std::vector<Node> nodes_;
  std::vector<Open> open_;
  std::vector<Open> children_;  // of the last node
  std::vector<const Choice*> chosen_;
  std::vector<Seconds> ends_;
  std::map<std::vector<std::size_t>, std::vector<State>> seen_;  // by depth, batches of those stages, partners
  std::vector<std::size_t> best_;
  double best_value_ = std::numeric_limits<double>::infinity();
};

}  // namespace torchshare
