#include "cluster/user_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>

namespace torchshare {

UserShares::UserShares(Seconds half_life, std::size_t users) : half_life_(half_life), use_(users) {
  if (!(half_life > 0)) {
    throw std::invalid_argument(fmt::format("the half-life of use must be > 0 s, got {} s", half_life));
  }
}

void UserShares::advance(Seconds passed, const std::vector<double>& shares) {
  const double kept = std::exp2(-passed / half_life_);
  const Seconds counted = half_life_ < kNeverVirtual ? half_life_ / std::numbers::ln2 * (1 - kept) : passed;
  for (std::size_t user = 0; user < use_.size(); ++user) {
    use_[user] = use_[user] * kept + shares[user] * counted;
  }
}

std::vector<int> UserShares::places() const {
  std::vector<std::size_t> order(use_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return use_[a] < use_[b]; });
  std::vector<int> places(use_.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    places[order[place]] = static_cast<int>(place);
  }
  return places;
}

}  // namespace torchshare
