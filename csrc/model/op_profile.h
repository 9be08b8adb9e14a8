#pragma once

#include <cstdint>
#include <string_view>

#include "torchshare/profile.h"

namespace torchshare {

/// The part of the device that an op mainly uses.
enum class OpKind : std::uint8_t { kUnknown, kCompute, kMemory };

/// Classifies an op by the name at the beginning of its text: products, convolutions, attention and recurrent layers
/// compute; all others move memory. An empty text is unknown.
OpKind op_kind(std::string_view text);

/// Folds `value` into the hash `seed`. Not for untrusted input.
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  seed = (seed ^ value) * 0x9E3779B97F4A7C15ULL;
  return seed ^ (seed >> 32);
}

}  // namespace torchshare
