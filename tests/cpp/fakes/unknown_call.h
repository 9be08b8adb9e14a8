#pragma once

#include <cstdint>
#include <string>

#include "memory/owned_memory.h"

namespace torchshare {

/// A call of an op without a name; the signature is optional.
struct UnknownCall {
  std::uint64_t hash = 1;
  std::uint64_t signature() const { return hash; }
  void check_owners(const MemoryOwner&) const {}
  std::string text() const { return "op " + std::to_string(hash); }
};

}  // namespace torchshare
