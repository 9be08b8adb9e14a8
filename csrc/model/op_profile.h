#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torchshare {

/// A time that is measured again and again: its mean and its mean distance from it, in nanoseconds. A new value counts
/// for a sixteenth at least, so that old times are forgotten.
struct OpTime {
  static constexpr std::uint32_t kEnough = 5;

  double mean = 0;
  double spread = 0;
  std::uint32_t count = 0;

  bool known() const { return count >= kEnough; }
  /// Values far out count for no more than eight spreads: one preemption is no news, many are.
  void add(double value);

  bool operator==(const OpTime&) const = default;
};

/// What an op keeps busy, most of all.
enum class OpKind : std::uint8_t { kUnknown, kCompute, kMemory };

/// By the name with which an op's text begins: products, convolutions, attention and recurrent layers compute; the rest
/// moves memory. An empty text is unknown.
OpKind op_kind(std::string_view text);

/// One op in its place: what it is, by name, shapes and dtypes, and which ops came before it.
struct OpProfile {
  std::uint64_t signature = 0;  ///< of the op
  std::uint64_t context = 0;    ///< of the op and those before it: its place in the step
  std::string text = {};        ///< the signature in words; empty where it was seen once
  OpTime duration = {};         ///< FIKIT's SK
  OpTime gap = {};              ///< FIKIT's SG: from its end to the begin of the next op

  bool operator==(const OpProfile&) const = default;
};

/// Folds `value` into the hash `seed`. Not for strangers' input.
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  seed = (seed ^ value) * 0x9E3779B97F4A7C15ULL;
  return seed ^ (seed >> 32);
}

}  // namespace torchshare
