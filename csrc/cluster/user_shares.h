#pragma once

#include <cstddef>
#include <vector>

#include "model/time.h"

namespace torchshare {

/// What each user has had of a cluster: its dominant share, the greater of those of GPUs and of memory, over time
/// (dominant resource fairness, Ghodsi et al., NSDI 11). Use that is one half-life old counts half.
class UserShares {
 public:
  /// Throws std::invalid_argument unless the half-life is positive.
  UserShares(Seconds half_life, std::size_t users);

  /// Counts `passed` seconds in which the users had these shares.
  void advance(Seconds passed, const std::vector<double>& shares);
  /// In seconds of the whole cluster.
  Seconds use(std::size_t user) const { return use_[user]; }
  std::size_t users() const { return use_.size(); }
  /// The place of each user in the order of use, the least first.
  std::vector<int> places() const;

 private:
  Seconds half_life_;
  std::vector<Seconds> use_;
};

}  // namespace torchshare
