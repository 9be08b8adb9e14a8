#include "cluster/interference.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

void check(double ratio) {
  if (!(ratio >= 1)) {
    throw std::invalid_argument(fmt::format("interference ratio must be at least 1, got {}", ratio));
  }
}

}  // namespace

Interference::Interference(double uniform) : models_(1), uniform_(uniform) {
  check(uniform);
}

Interference::Interference(int models, std::vector<double> ratios) : models_(models), table_(std::move(ratios)) {
  if (models < 1 || table_.size() != static_cast<std::size_t>(models) * static_cast<std::size_t>(models)) {
    throw std::invalid_argument(
        fmt::format("interference table must have {} x {} ratios, got {}", models, models, table_.size()));
  }
  std::for_each(table_.begin(), table_.end(), check);
}

int Interference::add_model() {
  if (!table_.empty()) {
    throw std::logic_error("an interference table has no further models");
  }
  return models_++;
}

void Interference::set(int model, int partner, double ratio) {
  for (const int each : {model, partner}) {
    if (each < 0 || each >= models_) {
      throw std::invalid_argument(fmt::format("model must be in the interference table, got {} of {}", each, models_));
    }
  }
  check(ratio);
  set_[pair_of(model, partner)] = ratio;
}

}  // namespace torchshare
