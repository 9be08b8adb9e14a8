#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

namespace torchshare {

/// Interference ratios: step time beside a partner / step time alone, for every pair of models.
class Interference {
 public:
  /// The ratio of a pair that was not measured or does not fit: it never shares.
  static constexpr double kNeverShares = std::numeric_limits<double>::infinity();

  /// One model, and one ratio for every pair.
  explicit Interference(double uniform);
  /// `ratios[model * models + partner]` is the ratio of `model` beside `partner`.
  /// Throws std::invalid_argument if the table is not square or a ratio is below 1 or NaN.
  Interference(int models, std::vector<double> ratios);

  int models() const { return models_; }
  double ratio(int model, int partner) const {
    if (!set_.empty()) {
      const auto found = set_.find(pair_of(model, partner));
      if (found != set_.end()) {
        return found->second;
      }
    }
    return table_.empty() ? uniform_ : table_[static_cast<std::size_t>(model * models_ + partner)];
  }

  /// Adds a model, whose pairs have the one ratio; returns its row. Throws std::logic_error for a table.
  int add_model();
  /// Sets the ratio of one pair; memory grows with the pairs that are set. Throws std::invalid_argument.
  void set(int model, int partner, double ratio);

 private:
  static std::uint64_t pair_of(int model, int partner) {
    return static_cast<std::uint64_t>(model) << 32 | static_cast<std::uint32_t>(partner);
  }

  int models_;
  double uniform_ = kNeverShares;
  std::vector<double> table_;  // empty: `uniform_`
  std::unordered_map<std::uint64_t, double> set_;
};

}  // namespace torchshare
