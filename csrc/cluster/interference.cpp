#include "cluster/interference.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace torchshare {

Interference::Interference(double uniform) : Interference(1, {uniform}) {}

Interference::Interference(int models, std::vector<double> ratios) : models_(models), ratios_(std::move(ratios)) {
  if (models < 1 || ratios_.size() != static_cast<std::size_t>(models) * static_cast<std::size_t>(models)) {
    throw std::invalid_argument(
        fmt::format("interference table must have {} x {} ratios, got {}", models, models, ratios_.size()));
  }
  for (const double ratio : ratios_) {
    if (!(ratio >= 1)) {
      throw std::invalid_argument(fmt::format("interference ratio must be at least 1, got {}", ratio));
    }
  }
}

}  // namespace torchshare
