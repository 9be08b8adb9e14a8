#include "model/op_profile.h"

#include <algorithm>
#include <cmath>

namespace torchshare {

void OpTime::add(double value) {
  constexpr double kMinWeight = 1.0 / 16;
  constexpr double kFarOut = 8;        // spreads
  constexpr double kMinSpread = 0.02;  // lower limit of the spread / mean, for outliers
  if (known()) {
    value = std::min(value, mean + kFarOut * std::max(spread, kMinSpread * mean));
  }
  ++count;
  const double weight = std::max(1.0 / count, kMinWeight);
  spread += weight * (std::abs(value - mean) * (count > 1) - spread);
  mean += weight * (value - mean);
}

OpKind op_kind(std::string_view text) {
  constexpr std::string_view kComputing[] = {"mm",          "addmm",  "bmm",       "baddbmm", "addbmm", "matmul",
                                             "convolution", "linear", "attention", "rnn",     "lstm",   "gru"};
  std::string_view name = text.substr(0, text.find_first_of("(."));
  name.remove_prefix(std::min(name.size(), name.rfind(':') + 1));
  for (std::string_view rest = name; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find('_'));
    if (std::find(std::begin(kComputing), std::end(kComputing), word) != std::end(kComputing)) {
      return OpKind::kCompute;
    }
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return text.empty() ? OpKind::kUnknown : OpKind::kMemory;
}

}  // namespace torchshare
