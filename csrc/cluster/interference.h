#pragma once

#include <limits>
#include <vector>

namespace torchshare {

/// Interference ratios: step time beside a partner / step time alone, for every pair of models.
class Interference {
 public:
  /// The ratio of a pair that was not measured or does not fit: it never shares.
  static constexpr double kNeverShares = std::numeric_limits<double>::infinity();

  /// One ratio for every pair.
  explicit Interference(double uniform);
  /// `ratios[model * models + partner]` is the ratio of `model` beside `partner`.
  /// Throws std::invalid_argument if the table is not square or a ratio is below 1 or NaN.
  Interference(int models, std::vector<double> ratios);

  int models() const { return models_; }
  double ratio(int model, int partner) const { return ratios_[static_cast<std::size_t>(model * models_ + partner)]; }

 private:
  int models_;
  std::vector<double> ratios_;
};

}  // namespace torchshare
