#pragma once

#include <iterator>
#include <utility>

#include "sharing/auto_sharing.h"

namespace torchshare {

/// With several ranks, the first one decides for all which jobs start and which are held: ranks that run different jobs
/// would wait for each other. It also keeps the bound for all; see `Gate::set_pace`. Not thread-safe.
class RankOrders {
 public:
  using Order = AutoSharing::Order;

  /// Called on the other ranks: leaves the decisions to the first one.
  void follow() { follows_ = true; }
  bool follows() const { return follows_; }
  /// Called on the first rank: its decisions are kept for `take`.
  void keep() { keeps_ = true; }

  /// A decision that was carried out here. Allocates nothing.
  void add(AutoSharing::Orders& orders) noexcept {
    if (keeps_) {
      made_.splice(made_.end(), orders);
    }
  }
  /// The decisions made since the last call.
  AutoSharing::Orders take() { return std::exchange(made_, {}); }

  /// An order about a job that is not added yet, or whose predecessors have not ended here.
  void add_early(Order order) { early_.push_back(std::move(order)); }
  AutoSharing::Orders take_early(JobId job) {
    AutoSharing::Orders orders;
    for (auto order = early_.begin(); order != early_.end();) {
      const auto next = std::next(order);
      if (order->job == job) {
        orders.splice(orders.end(), early_, order);
      }
      order = next;
    }
    return orders;
  }

 private:
  bool follows_ = false;
  bool keeps_ = false;
  AutoSharing::Orders made_;
  AutoSharing::Orders early_;
};

}  // namespace torchshare
