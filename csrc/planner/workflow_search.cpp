#include "planner/workflow_search.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace torchshare {

WorkflowSearch::WorkflowSearch(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal, Least least)
    : stages_(stages),
      goal_(goal),
      for_cost_(least == Least::kCost),
      choices_(choices_of(stages, goal.per_second)),
      prices_(for_cost_ ? choose_prices(stages, choices_, goal.limit) : WorkflowPrices(stages)),
      last_successor_(stages.size()),
      last_partner_(prices_.partners.size()),
      rest_cost_(stages.size() + 1),
      chosen_(stages.size()),
      ends_(stages.size()) {
  set_bounds();
}

void WorkflowSearch::set_bounds() {
  for (std::size_t stage = stages_.size(); stage-- > 0;) {
    std::vector<Choice>& choices = choices_[stage];
    double cheapest = std::numeric_limits<double>::infinity();
    for (Choice& choice : choices) {
      choice.priced = prices_.cost(stage, choice);
      cheapest = std::min(cheapest, choice.option->cost);
      if (choice.option->partner) {
        std::size_t& last = last_partner_[*choice.option->partner];
        last = std::max(last, stage);
      }
    }
    rest_cost_[stage] = rest_cost_[stage + 1] + cheapest;
    set_rest(stage);
    std::sort(choices.begin(), choices.end(),
              [](const Choice& a, const Choice& b) { return a.priced + a.rest < b.priced + b.rest; });
    for (const std::size_t p : stages_[stage].after) {
      last_successor_[p] = std::max(last_successor_[p], stage);
    }
  }
}

/// What is behind a choice is the same for those of the same batch.
void WorkflowSearch::set_rest(std::size_t stage) {
  std::map<int, std::pair<double, Seconds>> by_batch;
  for (Choice& choice : choices_[stage]) {
    const int batch = choice.option->batch;
    const auto [found, is_new] = by_batch.try_emplace(batch);
    auto& [rest, tail] = found->second;
    for (std::size_t next = stage + 1; is_new && next < stages_.size(); ++next) {
      const auto [priced, path] = least_behind(stage, batch, next);
      rest = next == stage + 1 ? priced : rest;
      tail = follows(next, stage) ? std::max(tail, path) : tail;
    }
    choice.rest = rest;
    choice.tail = tail;
  }
}

/// If `stage` has that batch, the least priced cost of `next` and those behind it, and its least latency with its tail.
std::pair<double, Seconds> WorkflowSearch::least_behind(std::size_t stage, int batch, std::size_t next) const {
  std::vector<int> bursts{batch};
  for (const std::size_t p : stages_[next].after) {
    for (const Choice& other : choices_[p]) {
      if (p != stage && other.option->batch > batch) {
        bursts.push_back(other.option->batch);
      }
    }
  }
  double priced = std::numeric_limits<double>::infinity();
  Seconds path = priced;
  for (const Choice& choice : choices_[next]) {
    const Seconds latency =
        follows(next, stage) ? least_latency(*choice.option, bursts, goal_.per_second) : choice.least;
    priced = std::min(priced, choice.priced + prices_.per_second[next] * (latency - choice.least) + choice.rest);
    path = std::min(path, latency + choice.tail);
  }
  return {priced, path};
}

bool WorkflowSearch::follows(std::size_t stage, std::size_t other) const {
  const auto& after = stages_[stage].after;
  return std::find(after.begin(), after.end(), other) != after.end();
}

/// The node with the least bound is next. At times a dive follows its best children to a plan, since plans bound the
/// rest.
std::vector<std::size_t> WorkflowSearch::best() {
  nodes_.emplace_back();
  open_.push_back({0, 0});
  for (int i = 0; !open_.empty() && nodes_.size() < goal_.max_nodes; ++i) {
    std::pop_heap(open_.begin(), open_.end());
    std::optional<Open> node = open_.back();
    open_.pop_back();
    if (node->bound >= worth()) {
      open_.clear();
      break;
    }
    const bool dives = best_.empty() || i % kDiveEvery == 0;
    while (node) {
      expand(node->node);
      node.reset();
      if (dives && !children_.empty()) {
        std::iter_swap(std::max_element(children_.begin(), children_.end()), children_.end() - 1);
        node = children_.back();
        children_.pop_back();
      }
      for (const Open& child : children_) {
        open_.push_back(child);
        std::push_heap(open_.begin(), open_.end());
      }
    }
  }
  return best_;
}

void WorkflowSearch::expand(std::size_t index) {
  children_.clear();
  restore(index);
  const Node node = nodes_[index];
  if (is_dominated(node)) {
    return;
  }
  const std::size_t stage = node.depth;
  const auto [arrives, burst] = arrival(stage);
  for (std::size_t i = 0; i < choices_[stage].size(); ++i) {
    const Choice& choice = choices_[stage][i];
    if (for_cost_ && node.priced + choice.priced + choice.rest - prices_.sum >= worth()) {
      break;  // those behind it have higher bounds
    }
    const Seconds latency = latency_after(*choice.option, burst, goal_.per_second);
    const Seconds path = arrives + latency + choice.tail;
    const double cost = node.cost + choice.option->cost;
    const double priced = node.priced + choice.priced + prices_.per_second[stage] * (latency - choice.least);
    const double bound = for_cost_ ? std::max(cost + rest_cost_[stage + 1], priced + choice.rest - prices_.sum)
                                   : std::max(node.bound, path);
    const bool is_late = for_cost_ && path > goal_.limit * (1 + kRounding);
    if (is_late || bound >= worth() || has_taken(stage, *choice.option)) {
      continue;
    }
    if (stage + 1 == stages_.size()) {
      keep(for_cost_ ? cost : bound, i);
    } else {
      nodes_.push_back({bound, cost, priced, index, stage + 1, i});
      children_.push_back({bound, nodes_.size() - 1});
    }
  }
}

/// What is chosen at a node, and the ends of those stages.
void WorkflowSearch::restore(std::size_t index) {
  for (std::size_t i = index; nodes_[i].depth > 0; i = nodes_[i].parent) {
    const std::size_t stage = nodes_[i].depth - 1;
    chosen_[stage] = &choices_[stage][nodes_[i].choice];
  }
  for (std::size_t stage = 0; stage < nodes_[index].depth; ++stage) {
    const auto [arrives, burst] = arrival(stage);
    ends_[stage] = arrives + latency_after(*chosen_[stage]->option, burst, goal_.per_second);
  }
}

/// Whether the stages behind had as much from a node before, at no higher cost.
bool WorkflowSearch::is_dominated(const Node& node) {
  std::vector<std::size_t> key{node.depth};
  std::vector<std::size_t> taken;
  State state{for_cost_ ? node.cost : node.bound, {}};
  for (std::size_t stage = 0; stage < node.depth; ++stage) {
    const StageOption& option = *chosen_[stage]->option;
    if (last_successor_[stage] >= node.depth) {
      key.push_back(static_cast<std::size_t>(option.batch));
      state.ends.push_back(ends_[stage]);
    }
    if (option.partner && last_partner_[*option.partner] >= node.depth) {
      taken.push_back(*option.partner);
    }
  }
  std::sort(taken.begin(), taken.end());
  key.insert(key.end(), taken.begin(), taken.end());
  std::vector<State>& seen = seen_[key];
  const auto is_better = [&](const State& other) {
    return other.cost <= state.cost &&
           std::equal(other.ends.begin(), other.ends.end(), state.ends.begin(), std::less_equal<>());
  };
  if (std::any_of(seen.begin(), seen.end(), is_better)) {
    return true;
  }
  seen.push_back(std::move(state));
  return false;
}

void WorkflowSearch::keep(double value, std::size_t choice) {
  chosen_.back() = &choices_.back()[choice];
  best_value_ = value;
  best_.clear();
  for (const Choice* each : chosen_) {
    best_.push_back(each->index);
  }
}

WorkflowSearch::Arrival WorkflowSearch::arrival(std::size_t stage) const {
  Arrival found;
  for (const std::size_t p : stages_[stage].after) {
    found.at = std::max(found.at, ends_[p]);
    found.burst = std::max(found.burst, chosen_[p]->option->batch);
  }
  return found;
}

bool WorkflowSearch::has_taken(std::size_t stages, const StageOption& option) const {
  return option.partner && std::any_of(chosen_.begin(), chosen_.begin() + static_cast<std::ptrdiff_t>(stages),
                                       [&](const Choice* other) { return other->option->partner == option.partner; });
}

}  // namespace torchshare
