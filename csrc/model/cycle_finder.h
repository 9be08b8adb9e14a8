#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torchshare {

/// Searches a graph for cycles, depth first. Over all calls, it visits each node once, and it does not recurse.
template <class Node>
class CycleFinder {
 public:
  /// The nodes of a cycle that can be reached from `root`, in which each node leads to the next and the last to the
  /// first; empty if there is none among the nodes that were not visited before. `next(node)` returns the nodes that
  /// `node` leads to, as a vector.
  template <class Next>
  std::vector<Node> find(Node root, Next next) {
    struct Step {
      Node node;
      std::vector<Node> next;
      std::size_t taken = 0;
    };
    std::vector<Step> path;
    const auto visit = [&](Node node) {
      if (visits_.try_emplace(node, Visit::kOnPath).second) {
        path.push_back({node, next(node)});
      }
    };
    visit(root);
    while (!path.empty()) {
      Step& last = path.back();
      if (last.taken == last.next.size()) {
        visits_[last.node] = Visit::kDone;
        path.pop_back();
        continue;
      }
      const Node other = last.next[last.taken++];
      if (const auto known = visits_.find(other); known != visits_.end() && known->second == Visit::kOnPath) {
        auto step = std::find_if(path.begin(), path.end(), [&](const Step& each) { return each.node == other; });
        std::vector<Node> cycle;
        for (; step != path.end(); ++step) {
          cycle.push_back(step->node);
        }
        return cycle;
      }
      visit(other);
    }
    return {};
  }

 private:
  enum class Visit : std::uint8_t { kOnPath, kDone };

  std::unordered_map<Node, Visit> visits_;
};

}  // namespace torchshare
