#include "cluster/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace torchshare {

Failures::Failures(std::vector<Outage> outages) : listed_(std::move(outages)) {
  for (const Outage& outage : listed_) {
    if (outage.first < 0 || outage.gpus < 1 || !(outage.begin >= 0 && outage.begin < outage.end)) {
      throw std::invalid_argument(
          fmt::format("an outage must have GPUs and end after its begin, got {} GPUs from {} on, from {} s to {} s",
                      outage.gpus, outage.first, outage.begin, outage.end));
    }
    gpus_ = std::max(gpus_, outage.first + outage.gpus);
  }
  std::stable_sort(listed_.begin(), listed_.end(),
                   [](const Outage& one, const Outage& other) { return one.begin > other.begin; });
}

Failures::Failures(const FailureRates& rates, int gpus, int per_node)
    : rates_(rates), gpus_(gpus), per_node_(per_node), random_(rates.seed) {
  const auto positive = [](Seconds time) { return time > 0 && time < kNeverVirtual; };
  if (!positive(rates.between) || !positive(rates.repair) || !(rates.node_share >= 0 && rates.node_share <= 1)) {
    throw std::invalid_argument(
        fmt::format("failures must have positive times and a share of nodes from 0 to 1, got {} s between, {} s of "
                    "repair and {}",
                    rates.between, rates.repair, rates.node_share));
  }
  if (gpus < 1 || per_node < 1 || gpus % per_node != 0) {
    throw std::invalid_argument(fmt::format("failures need whole nodes, got {} GPUs, {} per node", gpus, per_node));
  }
}

std::optional<Outage> Failures::next() {
  if (rates_.between == kNeverVirtual) {
    if (listed_.empty()) {
      return std::nullopt;
    }
    const Outage outage = listed_.back();
    listed_.pop_back();
    return outage;
  }
  last_ += exponential(rates_.between);
  const int gpus = uniform() < rates_.node_share ? per_node_ : 1;
  const GpuId first = gpus * below(gpus_ / gpus);
  return Outage{first, gpus, last_, last_ + exponential(rates_.repair)};
}

Seconds Failures::exponential(Seconds mean) {
  return -mean * std::log1p(-uniform());
}

}  // namespace torchshare
